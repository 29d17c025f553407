"""Whatever is rendered, the installed accelerate, DeepSpeed and Axolotl accept it, and read from it what was meant."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.core.views import Submission, SubmittedFile
from coordinator.render import Rendered, Site, Topology, render
from coordinator.render.presets import PRESETS

pytestmark = pytest.mark.training

topologies = st.builds(
    Topology,
    nodes=st.integers(1, 16),
    gpus_per_node=st.integers(0, 8),
    master_address=st.sampled_from(["10.0.9.59", "192.168.0.1", "fd00::9"]),
    master_port=st.integers(20_000, 60_000),
)
inline = st.fixed_dictionaries(
    {"zero_optimization": st.fixed_dictionaries({"stage": st.integers(0, 3)})},
    optional={
        "bf16": st.fixed_dictionaries({"enabled": st.sampled_from([True, False, "auto"])}),
        "gradient_accumulation_steps": st.just("auto"),
        "gradient_clipping": st.sampled_from(["auto", 1.0]),
        "train_batch_size": st.just("auto"),
        "train_micro_batch_size_per_gpu": st.just("auto"),
    },
)
deepspeeds = (
    st.none() | st.sampled_from(sorted(PRESETS)).map(lambda name: f"deepspeed_configs/{name}.json") | inline
)
brought = st.fixed_dictionaries(
    {},
    optional={
        "distributed_type": st.sampled_from(["DEEPSPEED", "MULTI_GPU", "NO"]),
        "mixed_precision": st.sampled_from(["no", "bf16", "fp16", False]),
        "downcast_bf16": st.sampled_from(["no", False]),
        "machine_rank": st.integers(0, 9),
        "num_machines": st.integers(1, 9),
        "main_process_ip": st.just("1.2.3.4"),
        "deepspeed_config": st.fixed_dictionaries(
            {"zero_stage": st.integers(0, 3)},
            optional={
                "gradient_clipping": st.just(1.0),
                "offload_optimizer_device": st.sampled_from(["none", "cpu"]),
                "deepspeed_multinode_launcher": st.sampled_from(["pdsh", "standard", "nossh"]),
                "zero3_init_flag": st.booleans(),
            },
        ),
    },
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A work folder to stand in, as the processes do: rendered paths are relative to it."""
    home = tmp_path_factory.mktemp("job")
    (home / "work").mkdir()
    (home / "attempt-1").mkdir()
    before = Path.cwd()
    os.chdir(home / "work")
    yield home / "attempt-1"
    os.chdir(before)


def rendered_into(
    folder: Path, topology: Topology, rank: int, deepspeed: object, accelerate: dict[str, object]
) -> Rendered:
    submission = Submission(
        config=json.dumps({"base_model": "b", "deepspeed": deepspeed}),
        accelerate=SubmittedFile(name="accelerate.yaml", text=json.dumps(accelerate)) if accelerate else None,
    )
    rendered = render(submission, topology, Site(rank, "eth0"))
    for file in rendered.files:
        (folder / file.path).write_text(file.content)
    return rendered


def launched(rendered: Rendered) -> tuple[Any, dict[str, str]]:
    """The arguments and the environment that accelerate would start torchrun with; nothing is started."""
    # Here, because it takes seconds, which every process would spend that collects this file.
    from accelerate.commands import launch

    arguments = launch.launch_command_parser().parse_args(rendered.train_argv[3:])
    arguments, defaults, from_config = launch._validate_launch_command(arguments)
    arguments.deepspeed_fields_from_accelerate_config = ",".join(
        [*defaults.deepspeed_config, *(["mixed_precision"] if from_config else [])]
    )
    prepare = (
        launch.prepare_deepspeed_cmd_env
        if arguments.use_deepspeed
        else launch.prepare_multi_gpu_env
        if arguments.multi_gpu
        else launch.prepare_simple_launcher_cmd_env
    )
    logging.getLogger("accelerate.commands.launch").setLevel(logging.ERROR)
    with mock.patch("accelerate.utils.launch.is_port_in_use", return_value=False):
        made = prepare(arguments)
    return arguments, made if isinstance(made, dict) else made[1]


@settings(max_examples=60)
@given(data=st.data(), topology=topologies, deepspeed=deepspeeds, accelerate=brought)
def test_accelerate_launches_what_was_meant(
    folder: Path, data: st.DataObject, topology: Topology, deepspeed: object, accelerate: dict[str, object]
) -> None:
    rank = data.draw(st.integers(0, topology.nodes - 1))
    rendered = rendered_into(folder, topology, rank, deepspeed, accelerate)
    arguments, environment = launched(rendered)
    has_deepspeed = "deepspeed.json" in {file.path for file in rendered.files}
    assert arguments.use_deepspeed == has_deepspeed
    if topology.world_size == 1 and not has_deepspeed:
        return
    assert arguments.nproc_per_node == str(max(1, topology.gpus_per_node))
    if topology.nodes > 1:
        assert (arguments.nnodes, arguments.node_rank) == (str(topology.nodes), rank)
        assert arguments.rdzv_endpoint == f"{topology.master_address}:{topology.master_port}"
    if has_deepspeed:
        assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
        assert Path(environment["ACCELERATE_DEEPSPEED_CONFIG_FILE"]).is_file()
        _deepspeed_accepts(environment, topology)


def _deepspeed_accepts(environment: dict[str, str], topology: Topology) -> None:
    """accelerate's collision check, and then DeepSpeed's own reading of the file."""
    from accelerate.utils import DeepSpeedPlugin
    from deepspeed.runtime.config import DeepSpeedConfig

    ours = {name: value for name, value in environment.items() if name.startswith("ACCELERATE_")}
    with mock.patch.dict(os.environ, ours):
        plugin = DeepSpeedPlugin()
    values = _filled_in(plugin.hf_ds_config.config)
    values["train_batch_size"] = 2
    config = DeepSpeedConfig(values)
    assert config.zero_optimization_stage == plugin.zero_stage
    if topology.on_cpu:
        assert not config.bfloat16_config.enabled
        assert not config.float16_config.enabled


def _filled_in(values: dict[str, Any]) -> dict[str, Any]:
    """`auto` as transformers' trainer fills it in."""
    known = {"enabled": False, "gradient_clipping": 1.0, "gradient_accumulation_steps": 1}
    known |= {"train_micro_batch_size_per_gpu": 2, "train_batch_size": 2}
    return {
        key: _filled_in(value)
        if isinstance(value, dict)
        else known.get(key, 1_000_000)
        if value == "auto"
        else value
        for key, value in values.items()
    }


def test_axolotl_accepts_the_demo_as_it_is_rendered(folder: Path) -> None:
    from axolotl.cli.config import prepare_plugins
    from axolotl.utils.config import validate_config
    from axolotl.utils.dict import DictDefault

    from coordinator.core.yaml import load
    from coordinator.demo.model import CONFIG, DEEPSPEED

    submission = Submission(
        config=CONFIG, deepspeed=SubmittedFile(name="zero2.json", text=json.dumps(DEEPSPEED))
    )
    rendered = render(submission, Topology(2, 0, "127.0.0.1", 29500), Site(0, "lo"))
    text = next(file.content for file in rendered.files if file.path == "axolotl.yaml")
    config = DictDefault(load(text))
    with mock.patch.dict(os.environ, {"AXOLOTL_IS_PREPROCESS": "1"}):
        prepare_plugins(config)
    checked = validate_config(
        config,
        capabilities={"bf16": False, "n_gpu": 2, "compute_capability": None, "fp8": False, "tf32": False},
        env_capabilities={"torch_version": "2.13.0"},
    )
    assert checked.plugins == config.plugins
    assert checked.deepspeed == "../attempt-1/deepspeed.json"
