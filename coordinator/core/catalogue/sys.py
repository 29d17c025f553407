"""`SYS…`: codes about the service itself: membership, deadlines, stores, access."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry
from coordinator.core.protocol import Stage

ENTRIES: tuple[Entry, ...] = (
    Entry(
        code="SYS001",
        title="Not enough replicas",
        severity="error",
        what="Fewer replicas than the job wants were registered when its time to gather was over.",
        why="A job starts only when all of its replicas are there.",
        fix="Start the missing replicas (their start command is `rankcall up`), or submit with fewer `--nodes`.",
        stage=Stage.GATHER,
    ),
    Entry(
        code="SYS002",
        title="A cloned replica",
        severity="warning",
        what="Two containers registered under the same replica id while the first was alive.",
        why="The container-local state was copied, for instance into the image or onto a shared volume; "
        "messages of the two could not be told apart, so the second got an id of its own.",
        fix="Keep RANKCALL_STATE_DIR on container-local disk and out of the image.",
    ),
    Entry(
        code="SYS003",
        title="A replica is gone",
        severity="error",
        what="A replica of the attempt has not been heard of for too long.",
        why="Its container was stopped or restarted, or its network is down; the others cannot go on without it.",
        fix="Look at the container in the cloud's console; `rankcall retry ID` once it is back or replaced.",
    ),
    Entry(
        code="SYS004",
        title="A stage took too long",
        severity="error",
        what="A stage was not finished within its deadline.",
        why="Every stage has a deadline, so that a hang is never silent.",
        fix="See which replica was waited for and read its log; a deadline can be set per job.",
    ),
    Entry(
        code="SYS020",
        title="A port is in use",
        severity="warning",
        what="Another process listens on a port that rankcall or the training's rendezvous wants.",
        why="The page and API cannot be served there; for the rendezvous another port is agreed on by all replicas.",
        fix="Set RANKCALL_PORT to a free port, or end the process that listens.",
    ),
    Entry(
        code="SYS021",
        title="The state folder cannot be used",
        severity="error",
        what="RANKCALL_STATE_DIR cannot be written.",
        why="The replica's identity, the logs of its training and the coordinator's store are kept there.",
        fix="Set RANKCALL_STATE_DIR to a folder on this container's own disk that this user may write.",
    ),
    Entry(
        code="SYS022",
        title="The state folder is shared",
        severity="warning",
        what="RANKCALL_STATE_DIR lies on a network file system.",
        why="Replicas that share it would take each other's identity, and SQLite is not safe there.",
        fix="Keep RANKCALL_STATE_DIR on container-local disk; RANKCALL_SHARED_DIR is what may be shared.",
    ),
    Entry(
        code="SYS023",
        title="The coordinator does not answer",
        severity="warning",
        what="There is no answer from the coordinator at the address this container was told.",
        why="An agent waits for it; commands about jobs end with exit code 3.",
        fix="Start `rankcall up` on the master replica; check RANKCALL_URL, RANKCALL_PEERS or RANKCALL_SHARED_DIR.",
    ),
    Entry(
        code="SYS024",
        title="The coordinator refuses the token",
        severity="error",
        what="The coordinator answers, but not to this container's RANKCALL_TOKEN.",
        why="An agent with another token cannot join.",
        fix="Give all replicas the same RANKCALL_TOKEN.",
    ),
    Entry(
        code="SYS025",
        title="Several replicas without a token",
        severity="error",
        what="The deployment has several replicas, and RANKCALL_TOKEN is not set.",
        why="Without a token the coordinator serves its own machine only, and no other replica can join.",
        fix="Give all replicas the same RANKCALL_TOKEN (any secret text of 8 characters or more).",
    ),
    Entry(
        code="SYS026",
        title="Nothing says where the coordinator is",
        severity="error",
        what="RANKCALL_NODES is more than one, but none of RANKCALL_URL, RANKCALL_PEERS, RANKCALL_SHARED_DIR is set.",
        why="Each replica would be a coordinator of its own and wait for the others for ever.",
        fix="Give all replicas the same RANKCALL_PEERS (a list of addresses, the first is the master), RANKCALL_URL, "
        "or a RANKCALL_SHARED_DIR that all of them mount.",
    ),
    Entry(
        code="SYS027",
        title="Training without an agent",
        severity="warning",
        what="Processes of a training run here, but no agent looks after them.",
        why="Training outlives its agent on purpose; but nobody reports it or ends it meanwhile.",
        fix="Start `rankcall up` again: its agent takes the training over, or ends it if it is wanted no more.",
    ),
    Entry(
        code="SYS028",
        title="The training stack is not whole",
        severity="error",
        what="A package that the training needs is not installed for the interpreter that is to run it.",
        why="The training would fail at its first import.",
        fix="Use an Axolotl image, or `pip install 'rankcall[train]'`; RANKCALL_PYTHON names another interpreter.",
    ),
    Entry(
        code="SYS030",
        title="A job taken up again",
        severity="note",
        what="The coordinator had lost its store, and put this job back from what a replica holds of it.",
        why="Training does not end because the coordinator's disk did. Its logs and figures are sent again by the "
        "replicas; jobs that had ended before are gone from the list, their files are still on the replicas.",
        fix="Nothing to do. Keep RANKCALL_STATE_DIR of the coordinator on a disk that outlives its container.",
    ),
    Entry(
        code="SYS031",
        title="A training nobody knows",
        severity="warning",
        what="A replica runs an attempt of which this coordinator knows nothing, and no replica has its snapshot.",
        why="The coordinator has lost its store, or is another one than the one that started the training. What it does "
        "not know it does not end; the replica gets no new work while it runs.",
        fix="Let it finish; or end it with SIGTERM to `rankcall up` on that replica, and start that again.",
    ),
    Entry(
        code="SYS032",
        title="rankcall could not go on with a job",
        severity="error",
        what="An error in rankcall itself, while it judged a stage of this job or made the plan for its replicas.",
        why="The job is ended rather than left standing; other jobs are not touched by it.",
        fix="See the evidence. Where it names a file or a key of the submission, correct that; else it is a fault of "
        "rankcall's: please report it with the evidence.",
    ),
    Entry(
        code="SYS033",
        title="A job's logs are kept no more",
        severity="note",
        what="The job ended long ago, or younger jobs needed the room: its logs, figures and files were dropped from the "
        "coordinator's store.",
        why="A disk is finite. What is kept is bounded by RANKCALL_KEEP_DAYS and RANKCALL_KEEP_GIB; those that ended first "
        "go first, and nothing of a job that has not ended. Its attempts, findings and verdict stay.",
        fix="Nothing to do. The model lies on the replica that trained it; set RANKCALL_KEEP_DAYS or RANKCALL_KEEP_GIB to "
        "keep more of later jobs.",
    ),
    Entry(
        code="SYS029",
        title="A setting cannot be understood",
        severity="error",
        what="A RANKCALL_* variable has a value that cannot be.",
        why="`rankcall up` refuses to start with it.",
        fix="Correct the variable; `rankcall up --help` says what each is for.",
    ),
)
