"""`SYS1..`: why the HTTP API refuses a request. Each is the `code` of a problem+json answer."""

from __future__ import annotations

from coordinator.core.catalogue.entry import Entry


def _entry(code: str, title: str, what: str, why: str, fix: str) -> Entry:
    return Entry(code=code, title=title, severity="error", what=what, why=why, fix=fix)


ENTRIES: tuple[Entry, ...] = (
    _entry(
        "SYS100",
        "not signed in",
        "The request carried no token, or one that this coordinator does not know.",
        "A service that starts processes on rented GPUs answers nobody it does not know.",
        "Send `Authorization: Bearer <RANKCALL_TOKEN>`, or sign in on the page.",
    ),
    _entry(
        "SYS101",
        "not allowed",
        "The token is known, but may not do this.",
        "A viewer's token only reads; a replica's token only speaks for that replica.",
        "Use the token of RANKCALL_TOKEN for what changes something.",
    ),
    _entry(
        "SYS102",
        "no such thing",
        "The path or the id in it does not exist.",
        "Ids are made by the coordinator; one of another deployment or a mistyped one finds nothing.",
        "List what there is: `rankcall jobs`, `rankcall nodes`, `rankcall artifacts ID`.",
    ),
    _entry(
        "SYS103",
        "request not understood",
        "A parameter or the body is not what the API document says.",
        "An unknown key is refused, because it is most often a misspelt one that would silently do nothing.",
        "Compare the request with /openapi.json; each finding names the field.",
    ),
    _entry(
        "SYS104",
        "request too large",
        "The body is larger than this route takes.",
        "Bodies are bounded, so that nobody can fill the coordinator's memory.",
        "Put large datasets and models where every replica can read them (RANKCALL_DATA_ROOTS), not into the bundle.",
    ),
    _entry(
        "SYS105",
        "idempotency key used for another request",
        "A job was already submitted with this Idempotency-Key, and its body was a different one.",
        "The key promises that a repeated request is the same one; answering with the old job would hide the change.",
        "Make a new key for a new submission.",
    ),
    _entry(
        "SYS106",
        "not possible in this state",
        "The job is in a state in which this makes no sense.",
        "Only an unfinished job can be cancelled, only a finished one can be tried again.",
        "Look at the job's state first: `rankcall job ID`.",
    ),
    _entry(
        "SYS107",
        "stale replica or attempt",
        "The message is of an earlier incarnation of the replica, or of an attempt that is over.",
        "What an old process says must not hurt the new one.",
        "Nothing to do: the agent registers again by itself.",
    ),
    _entry(
        "SYS108",
        "submission refused",
        "The checks found a fault with which the training cannot work.",
        "No GPU second is spent on a submission that cannot work.",
        "Each finding says what to write instead; `rankcall check CONFIG` checks without submitting.",
    ),
    _entry(
        "SYS109",
        "method not allowed",
        "The path exists, but not with this method.",
        "A method says what is to happen: GET reads, POST makes or asks for something, DELETE ends it.",
        "See /openapi.json for the methods of each path.",
    ),
    _entry(
        "SYS110",
        "coordinator fault",
        "Something went wrong inside the coordinator.",
        "This is a fault of rankcall's; its log has the details under the instance of this answer.",
        "Try again; if it stays, report it with the coordinator's log.",
    ),
    _entry(
        "SYS111",
        "not ready",
        "The coordinator is starting, stopping, or cannot reach its store.",
        "It answers again when its store does.",
        "Wait a moment; /readyz says what is missing.",
    ),
    _entry(
        "SYS112",
        "host not expected",
        "The Host header is no name of this service.",
        "A web page elsewhere may point its own name at this address to speak to it (DNS rebinding).",
        "Use localhost or 127.0.0.1, or name the host in RANKCALL_ALLOWED_HOSTS.",
    ),
    _entry(
        "SYS113",
        "request from another site",
        "A browser sent this on behalf of a page of another site.",
        "Another site must not act in the name of who is signed in here (CSRF).",
        "Use the coordinator's own page, or a client with a bearer token.",
    ),
    _entry(
        "SYS114",
        "file cannot be fetched now",
        "The replica that holds the file is not here, or did not send it in time.",
        "Results lie on the replica that trained; the coordinator passes them on.",
        "Wait until `rankcall nodes` shows the replica, then download again: a broken download resumes.",
    ),
    _entry(
        "SYS115",
        "range not satisfiable",
        "The Range asks for bytes beyond the end of the file.",
        "There is nothing to send; a download that resumes there has everything already, or is of another file.",
        "Ask for an offset smaller than the file's size.",
    ),
    _entry(
        "SYS116",
        "upload not expected",
        "Nobody waits for the bytes of this upload any more.",
        "The download it was for has ended.",
        "Nothing to do: the agent drops the upload.",
    ),
    _entry(
        "SYS117",
        "too many requests",
        "This address has sent too many wrong tokens, or more requests without a token than a person needs.",
        "Who guesses tokens or floods the service is turned away early; replicas that have registered and "
        "administrators are not counted.",
        "Wait as long as Retry-After says, and look at the token: the right one is answered at once, whoever guesses.",
    ),
    _entry(
        "SYS118",
        "request head too large",
        "The request line and the headers are larger than the coordinator reads.",
        "They are held in memory before anybody is known, so they are bounded.",
        "Clear the cookies of this address, or look which proxy adds so many headers.",
    ),
    _entry(
        "SYS119",
        "two containers with one id, or one that came back",
        "A container came with the id of another that was heard of a moment ago.",
        "Whether that one was restarted, or is alive and was cloned, shows in a few seconds: a live agent speaks every two.",
        "Nothing to do: the agent asks again by itself, and keeps its id or gets one of its own.",
    ),
    _entry(
        "SYS120",
        "no active coordinator",
        "Of the coordinator processes that share a PostgreSQL store none is the active one now, or it cannot be reached.",
        "The one that was has ended or is cut off; another takes over within ten seconds, and goes on from the store.",
        "Nothing to do if it passes. If it stays: look at the processes' logs, whether they reach their store, and each "
        "other at the address that RANKCALL_ADDRESS and RANKCALL_PORT say.",
    ),
    _entry(
        "SYS121",
        "kept no more",
        "The logs, figures and files of this job were dropped from the coordinator's store.",
        "What is kept of ended jobs is bounded by RANKCALL_KEEP_DAYS and RANKCALL_KEEP_GIB.",
        "Submit the job again. The replicas that trained it may still have its log in their RANKCALL_STATE_DIR.",
    ),
    _entry(
        "SYS122",
        "no longer the file that was collected",
        "The file of a result has other bytes now than when the job collected it.",
        "Somebody or a later job wrote to it on the replica; what is handed out must be what the job is known to have made.",
        "Take the file from the replica itself, if what it is now is wanted; else submit the job again.",
    ),
)
