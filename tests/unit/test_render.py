"""What each rank gets is rendered from the submission and the topology, and says why."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.protocol import BundleFile
from coordinator.core.views import Submission, SubmittedFile
from coordinator.core.yaml import load
from coordinator.render import Rendered, RenderError, Site, Topology, render
from coordinator.render.axolotl import CPU_PLUGIN, PROGRESS_PLUGIN
from coordinator.render.presets import PRESETS, preset

CONFIG = """\
base_model: ./base
datasets:
  - path: ./train.jsonl
    type: alpaca
adapter: lora
bf16: auto
optimizer: adamw_bnb_8bit
flash_attention: true
plugins: [axolotl.integrations.liger.LigerPlugin]
deepspeed: deepspeed_configs/zero2.json
"""
TWO_GPUS = Topology(2, 1, "10.0.9.59", 29500)
TWO_CPUS = Topology(2, 0, "10.0.9.59", 29500)
ETH0 = Site(0, "eth0", "ipv4", ("NVIDIA GeForce RTX 5090",), "r-0123456789")


def submission(config: str = CONFIG, **more: object) -> Submission:
    return Submission.model_validate({"config": config, **more})


def values(rendered: Rendered, path: str) -> dict[str, object]:
    content = next(file.content for file in rendered.files if file.path == path)
    return json.loads(content) if path.endswith(".json") else load(content, path)


def test_accelerate_and_axolotl_name_the_same_deepspeed_file() -> None:
    rendered = render(submission(), TWO_GPUS, ETH0, 3)
    named = values(rendered, "axolotl.yaml")["deepspeed"]
    assert named == "../attempt-3/deepspeed.json"
    assert values(rendered, "accelerate.yaml")["deepspeed_config"] == {
        "deepspeed_config_file": named,
        "deepspeed_multinode_launcher": "standard",
        "zero3_init_flag": False,
    }
    assert rendered.train_argv == (
        *("python", "-m", "accelerate.commands.launch", "--config_file", "../attempt-3/accelerate.yaml"),
        *("-m", "axolotl.cli.train", "../attempt-3/axolotl.yaml"),
    )
    assert rendered.prepare_argv == ("python", "-m", "agent.prepare", "../attempt-3/axolotl.yaml")


@given(
    nodes=st.integers(1, 9),
    gpus=st.integers(0, 8),
    number=st.integers(1, 99),
    interfaces=st.lists(st.sampled_from(["eth0", "ens5", None]), min_size=9, max_size=9),
)
def test_files_of_an_attempt_differ_in_machine_rank_only(
    nodes: int, gpus: int, number: int, interfaces: list[str | None]
) -> None:
    topology = Topology(nodes, gpus, "10.0.0.1", 29500)
    all_ranks = [
        render(
            submission(prompts=("Hi",)), topology, Site(rank, interfaces[rank], host_id=f"r-{rank}"), number
        )
        for rank in range(nodes)
    ]
    for rank, rendered in enumerate(all_ranks):
        for file, first in zip(rendered.files, all_ranks[0].files, strict=True):
            own = values(rendered, file.path)
            if file.path == "accelerate.yaml":
                assert own.pop("machine_rank") == rank
                assert own == {
                    k: v for k, v in values(all_ranks[0], file.path).items() if k != "machine_rank"
                }
            else:
                assert file == first


def test_the_topology_of_a_brought_accelerate_file_is_not_taken() -> None:
    brought = SubmittedFile(
        name="accelerate_config.yaml",
        text="distributed_type: 'NO'\nmachine_rank: 7\nnum_machines: 9\nnum_processes: 9\nmain_process_ip: 1.2.3.4\n"
        "main_process_port: 1\nmixed_precision: bf16\nrdzv_backend: c10d\ndowncast_bf16: no\n"
        "dynamo_config: {dynamo_backend: INDUCTOR}\n",
    )
    accelerate = values(render(submission(accelerate=brought), TWO_GPUS, ETH0), "accelerate.yaml")
    assert accelerate["machine_rank"] == 0
    assert accelerate["num_machines"] == accelerate["num_processes"] == 2
    assert (accelerate["main_process_ip"], accelerate["main_process_port"]) == ("10.0.9.59", 29500)
    assert accelerate["distributed_type"] == "DEEPSPEED"
    assert accelerate["downcast_bf16"] == "no"
    assert accelerate["dynamo_config"] == {"dynamo_backend": "INDUCTOR"}
    assert "mixed_precision" not in accelerate, "it collides with a DeepSpeed file"
    assert "rdzv_backend" not in accelerate


def test_without_deepspeed_the_ranks_share_gradients_all_the_same() -> None:
    plain = submission("base_model: b\n", accelerate={"name": "a.yaml", "text": "mixed_precision: no\n"})
    accelerate = values(render(plain, TWO_GPUS, ETH0), "accelerate.yaml")
    assert accelerate["distributed_type"] == "MULTI_GPU"
    assert accelerate["mixed_precision"] == "no"
    assert "deepspeed" not in values(render(plain, TWO_GPUS, ETH0), "axolotl.yaml")
    on_cpu = values(render(plain, TWO_CPUS, ETH0), "accelerate.yaml")
    assert (on_cpu["distributed_type"], on_cpu["use_cpu"]) == ("MULTI_GPU", True), "MULTI_CPU trains apart"
    alone = values(render(plain, Topology(1, 1, "10.0.0.1", 29500), ETH0), "accelerate.yaml")
    assert alone["distributed_type"] == "NO"


def test_deepspeed_settings_come_from_the_nearest_source() -> None:
    ds_file = BundleFile(path="deepspeed_configs/zero2.json", data=b'{"zero_optimization": {"stage": 1}}')
    own = SubmittedFile(name="ds.json", text='{"zero_optimization": {"stage": 0}}')
    inline = CONFIG.replace("deepspeed_configs/zero2.json", "{zero_optimization: {stage: 3}}")
    named = SubmittedFile(
        name="a.yaml",
        text="distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ./deepspeed_configs/zero3_bf16.json}\n",
    )
    settings = SubmittedFile(
        name="a.yaml",
        text="distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, offload_optimizer_device: cpu}\n",
    )
    stages = [
        render(submitted, TWO_GPUS, ETH0)
        for submitted in (
            submission(),
            submission(files=(ds_file,)),
            submission(files=(ds_file,), deepspeed=own),
            submission(inline),
            submission("base_model: b\n", accelerate=named),
            submission("base_model: b\n", accelerate=settings),
        )
    ]
    zero = [values(rendered, "deepspeed.json")["zero_optimization"] for rendered in stages]
    assert [section["stage"] for section in zero] == [2, 1, 0, 3, 3, 2]  # type: ignore[index]
    assert zero[5]["offload_optimizer"] == {"device": "cpu"}  # type: ignore[index]


def test_zero_3_gathers_its_weights_when_it_saves() -> None:
    config = CONFIG.replace(
        "deepspeed_configs/zero2.json",
        "{zero_optimization: {stage: 3, stage3_gather_16bit_weights_on_model_save: false}}",
    )
    rendered = render(submission(config), TWO_GPUS, ETH0)
    zero = values(rendered, "deepspeed.json")["zero_optimization"]
    assert zero["stage3_gather_16bit_weights_on_model_save"] is True  # type: ignore[index]
    assert values(rendered, "accelerate.yaml")["deepspeed_config"]["zero3_init_flag"] is True  # type: ignore[index]
    assert any("stage3_gather" in reason.key for reason in rendered.reasons)


def test_settings_without_a_batch_size_get_axolotls() -> None:
    config = CONFIG.replace("deepspeed_configs/zero2.json", "{zero_optimization: {stage: 1}}")
    deepspeed = values(render(submission(config), TWO_GPUS, ETH0), "deepspeed.json")
    assert deepspeed["train_micro_batch_size_per_gpu"] == deepspeed["gradient_accumulation_steps"] == "auto"


def test_on_the_cpu_what_only_a_gpu_can_do_is_turned_off_with_a_reason() -> None:
    rendered = render(submission(), TWO_CPUS, ETH0)
    axolotl = values(rendered, "axolotl.yaml")
    assert axolotl["bf16"] is axolotl["flash_attention"] is axolotl["lora_qkv_kernel"] is False
    assert axolotl["optimizer"] == "adamw_torch"
    assert axolotl["plugins"] == ["axolotl.integrations.liger.LigerPlugin", PROGRESS_PLUGIN, CPU_PLUGIN]
    deepspeed = values(rendered, "deepspeed.json")
    assert deepspeed["bf16"] == {"enabled": False}
    assert deepspeed["zero_force_ds_cpu_optimizer"] is False
    assert "train_batch_size" not in deepspeed
    assert "offload_optimizer" not in deepspeed["zero_optimization"]  # type: ignore[operator]
    assert rendered.environment["DS_ACCELERATOR"] == "cpu"
    reasons = {(reason.file, reason.key) for reason in rendered.reasons}
    assert {("axolotl.yaml", "optimizer"), ("deepspeed.json", "bf16.enabled")} <= reasons
    assert all(reason.why for reason in rendered.reasons)


def test_a_gpu_config_is_left_as_the_user_wrote_it() -> None:
    axolotl = values(render(submission(), TWO_GPUS, ETH0), "axolotl.yaml")
    user = load(CONFIG)
    changed = {key for key in axolotl if axolotl[key] != user.get(key)}
    assert changed == {"deepspeed", "plugins", "output_dir", "dataset_prepared_path"}


def test_the_environment_names_the_interface_that_routes_to_the_peers() -> None:
    environment = render(submission(), TWO_GPUS, ETH0).environment
    assert environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert environment["NCCL_SOCKET_IFNAME"] == "=eth0", "without `=` NCCL takes it for a beginning"
    assert environment["NCCL_SOCKET_FAMILY"] == "AF_INET"
    assert environment["NCCL_IB_DISABLE"] == "1"
    assert environment["NCCL_HOSTID"] == "r-0123456789"
    assert "NCCL_P2P_DISABLE" not in environment, "one GPU per replica has no peer in it"
    several = render(
        submission(), Topology(2, 2, "fd00::1", 29500), Site(1, "ens5", "ipv6", ETH0.gpu_names * 2)
    )
    assert several.environment["NCCL_P2P_DISABLE"] == "1"
    assert several.environment["NCCL_SOCKET_FAMILY"] == "AF_INET6"


@pytest.mark.parametrize("topology", [TWO_GPUS, TWO_CPUS])
def test_every_value_of_accelerate_and_every_variable_has_its_reason(topology: Topology) -> None:
    rendered = render(submission(), topology, ETH0)
    reasons = {(reason.file, reason.key) for reason in rendered.reasons}
    for key, value in values(rendered, "accelerate.yaml").items():
        for name in [f"{key}.{part}" for part in value] if isinstance(value, dict) else [key]:
            assert ("accelerate.yaml", name) in reasons
    for name in (*rendered.environment, *rendered.unset):
        assert ("environment", name) in reasons


def test_infiniband_that_all_share_is_used_by_the_ports_that_reach_the_peers() -> None:
    ports = ("mlx5_0:1", "mlx5_4:1")
    environment = render(submission(), TWO_GPUS, replace(ETH0, infiniband=ports)).environment
    assert environment["NCCL_IB_HCA"] == "=mlx5_0:1,mlx5_4:1"
    assert "NCCL_IB_DISABLE" not in environment
    refused = replace(ETH0, infiniband=ports, chosen={"NCCL_IB_DISABLE": "1"})
    assert "NCCL_IB_HCA" not in render(submission(), TWO_GPUS, refused).environment


def test_what_the_container_chose_itself_is_left_to_it() -> None:
    site = Site(0, "eth0", chosen={"NCCL_IB_DISABLE": "0"})
    rendered = render(submission(), TWO_GPUS, site)
    assert "NCCL_IB_DISABLE" not in rendered.environment
    assert any(reason.key == "NCCL_IB_DISABLE" and "container" in reason.why for reason in rendered.reasons)


@pytest.mark.parametrize(
    "leftover",
    ["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "NODE_RANK"],
)
def test_leftover_rank_variables_are_taken_away(leftover: str) -> None:
    assert leftover in render(submission(), TWO_GPUS, ETH0).unset
    for beginning in ("TORCHELASTIC_*", "ACCELERATE_*", "PET_*"):
        assert beginning in render(submission(), TWO_GPUS, ETH0).unset


def test_prompts_are_laid_out_as_the_training_data_is() -> None:
    def spec(config: str) -> dict[str, object]:
        return values(render(submission(config, prompts=("Hi",)), TWO_GPUS, ETH0), "compare.json")

    assert spec(CONFIG)["style"] == "alpaca"
    assert spec(CONFIG)["adapter"] is True
    assert spec("base_model: b\ndatasets: [{path: d, type: chat_template}]\n")["style"] == "chat"
    own = "base_model: b\ndatasets: [{path: d, type: {format: 'Q: {instruction} A:', field_output: o}}]\n"
    assert (spec(own)["style"], spec(own)["template"]) == ("template", "Q: {instruction} A:")
    assert spec("base_model: b\ndatasets: [{path: d, type: completion}]\n")["style"] == "raw"
    assert spec("base_model: b\n")["adapter"] is False
    assert render(submission(), TWO_GPUS, ETH0).compare_argv is None


def test_every_preset_of_axolotl_is_known_by_its_path_and_by_nothing_less() -> None:
    for name in PRESETS:
        for path in (
            f"deepspeed_configs/{name}.json",
            f"./deepspeed_configs/{name}.json",
            f"/w/deepspeed_configs/{name}.json",
        ):
            assert preset(path) == PRESETS[name]
        assert preset(f"{name}.json") is None, "the check says that this file is missing"
        assert preset(name) is None
    assert preset("deepspeed_configs/zero2_bf16.json") is None
    assert preset("mine/zero2.json") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": "a: [1\n"}, "config.yml"),
        ({"config": "deepspeed: zero2_bf16.json\n"}, "zero2_bf16.json"),
        ({"deepspeed": {"name": "ds.json", "text": "{,}"}}, "ds.json"),
        ({"deepspeed": {"name": "ds.json", "text": "[1]"}}, "ds.json"),
        ({"accelerate": {"name": "acc.yaml", "text": "a: b: c"}}, "acc.yaml"),
        ({"overrides": ("nonsense",)}, "nonsense"),
    ],
)
def test_what_cannot_be_rendered_says_which_file_or_key(change: dict[str, object], words: str) -> None:
    with pytest.raises(RenderError) as caught:
        render(submission(**{"config": CONFIG, **change}), TWO_GPUS, ETH0)  # type: ignore[arg-type]
    assert words in f"{caught.value.file} {caught.value.key} {caught.value.message}"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Topology(0, 1, "10.0.0.1", 29500),
        lambda: Topology(1, 1, "", 29500),
        lambda: Topology(1, 1, "10.0.0.1", 0),
        lambda: render(submission(), TWO_GPUS, Site(2)),
    ],
)
def test_an_impossible_topology_is_refused(make: object) -> None:
    with pytest.raises(RenderError):
        make()  # type: ignore[operator]


def test_overrides_reach_the_rendered_config() -> None:
    rendered = render(submission(overrides=("num_epochs=1", "output_dir=./other")), TWO_GPUS, ETH0)
    assert values(rendered, "axolotl.yaml")["num_epochs"] == 1
    assert rendered.output_dir == "./other"


def test_the_flight_recorder_writes_where_the_agent_looks_and_listens_to_its_pipe() -> None:
    from agent.flight_recorder import STEM

    made = dict(render(submission(), Topology(2, 1, "10.0.0.1", 29500), Site(0), 3).environment)
    flight = {name: value for name, value in made.items() if name.startswith(("TORCH_FR_", "TORCH_NCCL_"))}
    assert flight == {
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
        "TORCH_FR_BUFFER_SIZE": "2000",
        "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
        "TORCH_FR_DUMP_TEMP_FILE": f"../attempt-3/{STEM}",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"../attempt-3/{STEM}",
        "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"../attempt-3/{STEM}",
    }


def test_deepspeed_settings_count_only_where_accelerate_takes_notice_of_them() -> None:
    """As the check says (CFG122): else what it accepts could name a file that nobody needs."""
    config = CONFIG.replace("deepspeed: deepspeed_configs/zero2.json\n", "")
    for kind in ("MULTI_GPU", "'NO'", "FSDP"):
        launch = f"distributed_type: {kind}\ndeepspeed_config: {{deepspeed_config_file: no/such.json}}\n"
        rendered = render(
            submission(config, accelerate=SubmittedFile(name="acc.yaml", text=launch)), TWO_GPUS, ETH0
        )
        assert "deepspeed_config" not in values(rendered, "accelerate.yaml")
        assert "deepspeed" not in values(rendered, "axolotl.yaml")
