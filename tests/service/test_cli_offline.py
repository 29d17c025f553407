"""The verbs that need no coordinator, as commands: check, render, explain, doctor, and the command's manners."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commandline import Shell

from coordinator.core import yaml
from coordinator.core.catalogue import CODES

CONFIG = """\
base_model: org/model
datasets: [{path: org/data, type: alpaca}]
micro_batch_size: 1
gradient_accumulation_steps: 1
num_epochs: 1
learning_rate: 0.0002
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
output_dir: ./outputs
deepspeed: zero2.json
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: DEEPSPEED
num_machines: 2
num_processes: 2
machine_rank: 0
main_process_ip: 10.0.0.4
main_process_port: 29500
deepspeed_config:
  deepspeed_config_file: deepspeed_configs/zero2.json
  deepspeed_multinode_launcher: standard
  zero3_init_flag: false
"""
DEEPSPEED = {
    "zero_optimization": {"stage": 2},
    "bf16": {"enabled": "auto"},
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    (tmp_path / "config.yml").write_text(CONFIG)
    (tmp_path / "zero2.json").write_text(json.dumps(DEEPSPEED))
    return Shell(tmp_path, "http://127.0.0.1:9")


def test_help_names_every_verb_and_loads_no_service(shell: Shell) -> None:
    ran = shell.run("--help")
    assert ran.code == 0
    for verb in (
        "submit", "jobs", "job", "logs", "cancel", "retry", "artifacts", "report", "nodes",
        "check", "render", "explain", "doctor", "up", "coordinator", "agent", "demo",
    ):  # fmt: skip
        assert f"\n  {verb} " in ran.out
        assert shell.run(verb, "--help").code == 0
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, coordinator.cli.verbs; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for heavy in ("fastapi", "sqlmodel", "httpx", "pydantic", "torch", "yaml", "uvicorn", "psutil"):
        assert heavy not in loaded


def test_usage_errors_are_exit_2_and_say_what_is_wrong(shell: Shell) -> None:
    assert shell.run("nonsense").code == 2
    assert shell.run("submit").code == 2
    assert shell.run("submit", "config.yml", "--nodes", "0").code == 2
    ran = shell.run("submit", "confg.yml")
    assert ran.code == 2
    assert "Did you mean config.yml?" in ran.err
    assert shell.run("submit", ".").code == 2
    assert shell.run("check", ".").code == 2
    for verb in ("check", "submit"):
        ran = shell.run(verb, "config.yml", "--allow", "CFG02")
        assert ran.code == 2
        assert "Did you mean CFG" in ran.err
        for override in ("datasets.²=x", f"datasets.{'9' * 5000}=x", "a=!!bool x"):
            ran = shell.run(verb, "config.yml", "--set", override)
            assert ran.code == 2
            assert "--set" in ran.err and len(ran.err) < 1000
    assert shell.run("submit", "config.yml", "--deadline", "lunch=1h").code == 2
    assert shell.run("jobs", RANKCALL_URL="ftp://nowhere").code == 2
    assert (
        shell.run("render", "config.yml", "--nodes", "2", "--master-addr", "10.0.0.4", "--rank", "2").code
        == 2
    )


@pytest.mark.parametrize(
    "options",
    [
        ("--master-addr", "10.0.0.5:29500"),
        ("--master-addr", "300.1.1.1"),
        ("--master-addr", "127.0.0.1"),
        ("--master-addr", "0.0.0.0"),
        ("--master-addr", "a b;c"),
        ("--master-addr", "12345"),
        ("--master-addr", "10.0.0.5", "--interface", "eth0;rm"),
    ],
)
def test_render_refuses_what_no_replica_could_use(options: tuple[str, ...], shell: Shell) -> None:
    ran = shell.run("render", "config.yml", "--nodes", "2", *options)
    assert ran.code == 2
    assert options[-1] in ran.err
    assert "Traceback" not in ran.err


def test_check_gives_a_verdict_as_data_and_as_exit_code(shell: Shell) -> None:
    good = shell.run("check", "config.yml", "--nodes", "2", "--json")
    assert good.code == 0, good.out
    assert json.loads(good.out)["verdict"] == "accept"
    assert good.err == ""
    bad = shell.run("check", "config.yml", "--set", "deepspeed=zero2_bf16.json", "--json")
    assert bad.code == 1
    verdict = json.loads(bad.out)
    assert verdict["verdict"] == "reject"
    assert "zero2_bf16.json" in json.dumps(verdict)


@pytest.mark.parametrize(
    "content",
    [b"a: [", b"\xff\xfe\x00", b"a: 1\n\tb: 2\n", b"", b"- a\n- b\n", b"a: &x [*x]\n", b"\x00" * 100],
)
def test_what_is_no_config_is_rejected_in_words(shell: Shell, content: bytes) -> None:
    (shell.folder / "config.yml").write_bytes(content)
    ran = shell.run("check", "config.yml", "--json")
    assert ran.code == 1
    assert json.loads(ran.out)["findings"][0]["code"] in CODES
    assert shell.run("submit", "config.yml").code == 1


def test_a_plain_check_loads_nothing_that_makes_it_slow(shell: Shell) -> None:
    program = """
import sys
from coordinator.cli import main
sys.argv = ["rankcall", "check", "config.yml"]
try:
    main()
finally:
    print(*sys.modules)
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=shell.folder, capture_output=True, text=True, check=False
    )
    loaded = ran.stdout.splitlines()[-1].split()
    assert "coordinator.checks" in loaded, ran.stderr
    for heavy in (
        "fastapi",
        "sqlmodel",
        "sqlalchemy",
        "httpx",
        "torch",
        "axolotl",
        "transformers",
        "uvicorn",
    ):
        assert heavy not in loaded


def test_fix_writes_beside_the_original(shell: Shell) -> None:
    (shell.folder / "config.yml").write_text(CONFIG.replace("micro_batch_size", "micro_batchsize"))
    ran = shell.run("check", "config.yml", "--fix")
    assert ran.code == 1
    assert "config.fixed.yml" in ran.err
    assert yaml.load((shell.folder / "config.fixed.yml").read_text())["micro_batch_size"] == 1
    assert "micro_batchsize" in (shell.folder / "config.yml").read_text()


def test_fix_writes_over_nothing_and_follows_no_link(shell: Shell) -> None:
    (shell.folder / "config.yml").write_text(CONFIG.replace("micro_batch_size", "micro_batchsize"))
    mine = shell.folder / "mine"
    mine.write_text("mine")
    for place in (lambda path: path.symlink_to(mine), lambda path: path.write_text("mine")):
        place(shell.folder / "config.fixed.yml")
        ran = shell.run("check", "config.yml", "--fix")
        assert ran.code == 1
        assert "config.fixed.yml is there already" in ran.err and "Move it away" in ran.err
        assert mine.read_text() == "mine" and (shell.folder / "config.fixed.yml").read_text() == "mine"
        (shell.folder / "config.fixed.yml").unlink()


def test_fix_keeps_the_line_endings_of_the_file(shell: Shell) -> None:
    text = CONFIG.replace("micro_batch_size", "micro_batchsize").replace("\n", "\r\n")
    (shell.folder / "config.yml").write_bytes(text.encode())
    shell.run("check", "config.yml", "--fix")
    fixed = (shell.folder / "config.fixed.yml").read_bytes()
    assert fixed.count(b"\r\n") == fixed.count(b"\n") == CONFIG.count("\n")


def test_render_leaves_nothing_of_an_earlier_render_and_everything_else(shell: Shell) -> None:
    out = shell.folder / "out"
    to = ("--master-addr", "10.0.0.4", "-o", str(out))
    assert shell.run("render", "config.yml", "--nodes", "3", "--prompt", "x", *to).code == 0
    (out / "rank-1" / "notes.txt").write_text("mine")
    (out / "rank-mine").mkdir()
    (shell.folder / "elsewhere").mkdir()
    ran = shell.run("render", "config.yml", "--nodes", "1", "--set", "deepspeed=", *to)
    assert ran.code == 0, ran.err
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*")) == [
        "rank-0", "rank-0/accelerate.yaml", "rank-0/axolotl.yaml", "rank-0/commands", "rank-0/environment",
        "rank-1", "rank-1/notes.txt", "rank-mine",
    ]  # fmt: skip
    assert "notes.txt" in ran.err
    ran = shell.run("render", "config.yml", "--nodes", "3", "--rank", "2", *to)
    assert ran.code == 0 and (out / "rank-0" / "commands").exists() and (out / "rank-2" / "commands").exists()
    (out / "rank-3").symlink_to(shell.folder / "elsewhere")
    ran = shell.run("render", "config.yml", "--nodes", "4", *to)
    assert ran.code == 1 and "is a link" in ran.err
    assert list((shell.folder / "elsewhere").iterdir()) == []


def test_render_writes_a_folder_for_each_rank_that_differ_in_the_rank_only(shell: Shell) -> None:
    out = shell.folder / "out"
    ran = shell.run(
        "render", "config.yml", "--nodes", "3", "--master-addr", "10.0.0.4", "--why", "-o", str(out)
    )
    assert ran.code == 0, ran.err
    assert "environment: NCCL" in ran.err
    ranks = [yaml.load((out / f"rank-{rank}" / "accelerate.yaml").read_text()) for rank in range(3)]
    assert [values.pop("machine_rank") for values in ranks] == [0, 1, 2]
    assert ranks[0] == ranks[1] == ranks[2]
    assert ranks[0]["main_process_ip"] == "10.0.0.4"
    same = {(out / f"rank-{rank}" / "axolotl.yaml").read_text() for rank in range(3)}
    assert len(same) == 1
    assert "accelerate.commands.launch" in (out / "rank-0" / "commands").read_text()


def test_render_prints_one_rank_as_json(shell: Shell) -> None:
    ran = shell.run(
        "render", "config.yml", "--nodes", "2", "--master-addr", "fd00::4", "--rank", "1", "--json"
    )
    assert ran.code == 0, ran.err
    (view,) = json.loads(ran.out)
    assert view["rank"] == 1
    assert {file["path"] for file in view["files"]} >= {"accelerate.yaml", "axolotl.yaml", "deepspeed.json"}


def test_a_preset_that_an_accelerate_file_names_is_rendered_as_it_is_checked(shell: Shell) -> None:
    (shell.folder / "config.yml").write_text(CONFIG.replace("deepspeed: zero2.json\n", ""))
    (shell.folder / "acc.yaml").write_text(ACCELERATE)
    brought = ("config.yml", "--nodes", "2", "--accelerate", "acc.yaml")
    checked = shell.run("check", *brought, "--json")
    assert checked.code == 0, checked.out
    ran = shell.run("render", *brought, "--master-addr", "10.0.0.4", "--rank", "0", "--json")
    assert ran.code == 0, ran.err
    (view,) = json.loads(ran.out)
    (written,) = (file["content"] for file in view["files"] if file["path"] == "deepspeed.json")
    assert json.loads(written)["zero_optimization"]["stage"] == 2


def test_every_code_is_explained(shell: Shell) -> None:
    listed = shell.run("explain", "--all", "--json")
    assert {entry["code"] for entry in json.loads(listed.out)} == set(CODES)
    one = shell.run("explain", "sys001")
    assert one.code == 0
    assert CODES["SYS001"].fix in one.out
    unknown = shell.run("explain", "SYS01")
    assert unknown.code == 102
    assert "Did you mean" in unknown.err
    assert shell.run("explain").code == 2


def test_a_pipe_that_closes_early_is_no_failure(shell: Shell) -> None:
    piped = f"{sys.executable} -m coordinator.cli explain --all | head -1"
    ran = subprocess.run(["bash", "-o", "pipefail", "-c", piped], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "Traceback" not in ran.stderr


def doctor(shell: Shell, **more: str) -> tuple[int, dict[str, object], set[str]]:
    state = {"RANKCALL_STATE_DIR": str(shell.folder / "state"), "RANKCALL_URL": "", **more}
    ran = shell.run("doctor", "--json", within_s=120, **state)
    examination = json.loads(ran.out)
    return ran.code, examination, {finding["code"] for finding in examination["findings"]}


def test_doctor_knows_the_stack_and_the_caches(shell: Shell) -> None:
    code, examination, codes = doctor(shell)
    assert code == 0, examination
    facts = examination["facts"]
    assert isinstance(facts, dict)
    assert "torch" in facts["packages"]
    assert not codes & {"SYS021", "SYS023", "SYS028"}


def test_doctor_names_what_is_wrong_with_the_container(shell: Shell) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, examination, codes = doctor(
            shell,
            RANKCALL_PORT=port,
            RANKCALL_NODES="2",
            RANKCALL_TOKEN="",
            RANKCALL_PEERS="192.0.2.7",
            HF_HOME="/data/.cache/huggingface",
            HF_HUB_CACHE="/somewhere/else",
            WORLD_SIZE="4",
        )
    assert code == 1
    assert {"SYS020", "SYS023", "SYS025", "ENV024", "ENV025"} <= codes, examination
    assert re.search(rf"pid {os.getpid()}\)", json.dumps(examination))
    shutil.rmtree(shell.folder / "state")
    (shell.folder / "state").write_text("a file")
    assert "SYS021" in doctor(shell)[2]
    assert "SYS026" in doctor(shell, RANKCALL_NODES="2")[2]
    assert "SYS029" in doctor(shell, RANKCALL_PORT="web")[2]


def test_doctor_finds_training_that_nobody_looks_after(shell: Shell) -> None:
    folder = shell.folder / "state" / "jobs" / "0badcafe" / "attempt-1"
    folder.mkdir(parents=True)
    orphan = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANKCALL_ATTEMPT_DIR": str(folder)})
    try:
        time.sleep(0.2)
        _, examination, codes = doctor(shell)
    finally:
        orphan.kill()
        orphan.wait()
    assert "SYS027" in codes, examination


@pytest.mark.parametrize(
    ("verb", "once_imported"),
    [
        (("jobs",), "typer"),
        (("jobs",), "coordinator.core.protocol"),
        (("check", "config.yml"), "coordinator.cli.verbs"),
        (("check", "config.yml"), "coordinator.checks.subject"),
        (("coordinator",), "fastapi"),
        (("coordinator",), "coordinator.store.migrations"),
        (("agent",), "httpx"),
        (("up",), "coordinator.core.process"),
    ],
)
def test_ctrl_c_at_any_moment_of_a_start_is_130_and_no_traceback(
    verb: tuple[str, ...], once_imported: str, shell: Shell
) -> None:
    process = shell.start(
        *verb, PYTHONPROFILEIMPORTTIME="1", RANKCALL_STATE_DIR=str(shell.folder / "s"), RANKCALL_PORT="0"
    )
    assert process.stderr is not None
    said = []
    try:
        for line in process.stderr:
            said.append(line)
            if line.rstrip().endswith(f" {once_imported}"):
                break
        else:
            raise AssertionError("".join(said))
        process.send_signal(signal.SIGINT)
        said.extend(process.stderr)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.communicate()
    assert not [line for line in said if "Traceback" in line or "KeyboardInterrupt" in line]


def test_the_gpu_that_is_named_counts_for_every_rule_and_must_be_known(shell: Shell) -> None:
    named = ("check", "config.yml", "--set", "bf16=true", "--gpu")
    assert shell.run(*named, "NVIDIA GeForce RTX 5090").code == 0
    old = shell.run(*named, "Tesla T4")
    assert old.code == 1 and "CFG403" in old.err and "Tesla T4 (sm_75)" in old.err
    unknown = shell.run(*named, "RTX 509")
    assert unknown.code == 2 and unknown.out == ""
    assert "no GPU is known by this name" in unknown.err and "Did you mean 'RTX 5090'?" in unknown.err
    assert "Tesla T4" in shell.run(*named, "a toaster").err


def test_check_says_what_submit_would_refuse_to_carry(shell: Shell) -> None:
    """The same sentence, from the same place."""
    with (shell.folder / "corpus.jsonl").open("wb") as file:
        file.truncate(65 << 20)
    (shell.folder / "link.jsonl").symlink_to("/etc/hostname")
    large = ("--set", "datasets.0.path=corpus.jsonl")
    said = [shell.run(verb, "config.yml", *large) for verb in ("check", "submit")]
    for ran in said:
        assert ran.code == 1 and "error CFG026 config.yml:2:datasets.0.path" in ran.err
        assert "corpus.jsonl (65.0 MiB)" in ran.err and "the limit is 64.0 MiB" in ran.err
    linked = ("--set", "datasets.0.path=link.jsonl")
    assert "warning CFG025" in shell.run("check", "config.yml", *linked).err
    assert "error CFG025" in shell.run("submit", "config.yml", *linked).err


def test_render_refuses_what_check_rejects_and_says_why(shell: Shell) -> None:
    (shell.folder / "config.yml").write_text(CONFIG.replace("micro_batch_size", "micro_batchsize"))
    to = ("render", "config.yml", "--nodes", "2", "--master-addr", "10.0.0.4", "-o", "out")
    refused = shell.run(*to)
    assert refused.code == 1 and refused.out == ""
    assert (
        "error CFG601 config.yml:3:micro_batchsize" in refused.err and "nothing was rendered" in refused.err
    )
    assert not (shell.folder / "out").exists()
    allowed = shell.run(*to, "--allow", "CFG601")
    assert allowed.code == 0 and "warning CFG601" in allowed.err and "2 ranks are in out." in allowed.err
    assert shell.run(*to, "--allow", "CFG60").code == 2
    alone = shell.run(*to[:3], "1", *to[4:], "--allow", "CFG601")
    assert "1 rank is in out." in alone.err
    (shell.folder / "config.yml").write_text("base_model: [")
    assert "CFG001" in shell.run(*to).err
