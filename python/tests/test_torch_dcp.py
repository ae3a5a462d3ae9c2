"""The DCP adapter in one process: what can be stored comes back, what cannot is refused before anything changes."""
import os
import subprocess
import uuid
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import forebay
from forebay.torch import ForebayReader, ForebayWriter

ROOT = Path(__file__).resolve().parents[2]
FOREBAY = Path(os.environ.get("FOREBAY_BUILD", ROOT / "build")) / "forebay"
ADAPTER_LINES = 286  # what a comparable engine needed for one training framework

pytestmark = pytest.mark.filterwarnings("ignore")  # DCP warns that torch.distributed is not initialized


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    folder = tmp_path_factory.mktemp("c")
    subprocess.run([FOREBAY, "up", "--nodes", "1", "--dir", folder], check=True, stdout=subprocess.DEVNULL)
    yield forebay.connect(str(folder / "node-0" / "socket"))
    subprocess.run([FOREBAY, "down", "--dir", folder], check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="module")
def group(session):
    return session.join("tests", run=str(uuid.uuid4()), rank=0, size=1)


@pytest.fixture
def bundle(request):
    return "torch/" + request.node.name.replace("[", "-").replace("]", "")


def save(group, bundle, state, step=1, **options):
    writer = ForebayWriter(group, bundle, step, **options)
    dcp.save(state, storage_writer=writer, planner=writer.planner, no_dist=True)
    return writer.save.version


def load(source, bundle, state, version="latest"):
    dcp.load(state, storage_reader=ForebayReader(source, bundle, version), no_dist=True)
    return state


def raw(tensor):
    """The tensor's bytes, whatever its dtype, as a tensor of uint8."""
    return torch.frombuffer(bytearray(tensor.contiguous().untyped_storage()), dtype=torch.uint8)


def all_dtypes():
    found = {name: value for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
    # Left out: quantized ones (refused, they carry scales), and place holders for which torch has no operation at all.
    no_memory = ("qint", "quint", "bits")
    no_operation = [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)]
    return [n for n, d in found.items() if str(d) == f"torch.{n}" and not n.startswith(no_memory) and n not in no_operation]


def test_adapter_stays_short():
    assert len((ROOT / "python/forebay/torch.py").read_text().splitlines()) < ADAPTER_LINES


def test_every_dtype_comes_back_bit_for_bit(session, group, bundle):
    state, target = {}, {}
    for name in all_dtypes():
        dtype = getattr(torch, name)
        count = 6 * dtype.itemsize
        bits = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
        state[name] = bits.view(dtype).view(2, 3)
        target[name] = torch.zeros(count, dtype=torch.uint8).view(dtype).view(2, 3)
    assert {"bfloat16", "bool", "complex64", "complex128", "float8_e4m3fn", "uint16", "uint64", "float64"} <= set(state)
    save(group, bundle, state)
    load(session, bundle, target)
    for name, tensor in state.items():
        assert raw(target[name]).equal(raw(tensor)), name


def test_items_carry_torchs_dtype_and_the_global_shape(session, group, bundle):
    save(group, bundle, {"w": torch.zeros(3, 5, dtype=torch.bfloat16), "n": {"s": torch.tensor(1.5)}})
    items = {item.name: item for item in session.open(bundle, "latest").items()}
    assert (items["w"].dtype, tuple(items["w"].shape), items["w"].nbytes) == ("bfloat16", (3, 5), 30)
    assert (items["n.s"].dtype, tuple(items["n.s"].shape), items["n.s"].nbytes) == ("float32", (), 4)
    assert set(items) == {"w", "n.s", "~planner/0"}


@pytest.mark.parametrize("make", [lambda: torch.eye(3).to_sparse(), lambda: torch.empty(3, device="meta")])
def test_what_has_no_plain_memory_is_refused_naming_the_key(group, bundle, make):
    with pytest.raises(CheckpointException, match="odd.one"):
        save(group, bundle, {"good": torch.ones(2), "odd": {"one": make()}})


def test_keys_never_collide(session, group, bundle):
    keys = ["~planner/0", "~", "", "~=", "~=x", "x", "=x", "a.b", "a/b", "é\n"]
    state = {key: torch.full((2,), float(i)) for i, key in enumerate(keys)}
    save(group, bundle, state)
    loaded = load(session, bundle, {key: torch.zeros(2) for key in keys})
    assert all(loaded[key].equal(state[key]) for key in keys)


def test_paths_that_flatten_to_one_key_are_refused(group, bundle):
    with pytest.raises(CheckpointException, match="a.b"):
        save(group, bundle, {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}})


def test_objects_come_back(session, group, bundle):
    state = {"loader": {"position": 17, "files": ["a", "b"]}, "random": torch.get_rng_state()}
    save(group, bundle, state)
    loaded = load(session, bundle, {"loader": {"position": 0, "files": []}, "random": torch.zeros_like(state["random"])})
    assert loaded["loader"] == state["loader"]
    assert loaded["random"].equal(state["random"])


def test_the_state_dict_can_be_rebuilt_from_the_version_alone(session, group, bundle):
    from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

    state = {"model": {"w": torch.randn(3, 2)}, "steps": 5, "list": [torch.ones(2), torch.zeros(2)]}
    save(group, bundle, state)
    rebuilt = _load_state_dict_from_keys(storage_reader=ForebayReader(session, bundle))
    assert rebuilt["model"]["w"].equal(state["model"]["w"]) and rebuilt["steps"] == 5
    assert rebuilt["list"][0].equal(state["list"][0]) and len(rebuilt["list"]) == 2


@pytest.mark.parametrize("shape", [(8, 8), (4, 4), (32,), (8, 4, 1)])
def test_a_wrong_shape_is_refused_and_no_target_changes(session, group, bundle, shape):
    save(group, bundle, {"a": torch.ones(3), "w": torch.ones(8, 4)})
    target = {"a": torch.full((3,), 7.0), "w": torch.full(shape, 7.0)}
    with pytest.raises(CheckpointException, match=r"8, 4(.|\n)*w"):
        load(session, bundle, target)
    assert all((tensor == 7.0).all() for tensor in target.values())


class Narrowing(dcp.DefaultLoadPlanner):
    """A faulty planner, whose targets are smaller than the reads that it asked for."""

    def resolve_tensor(self, read_item):
        return super().resolve_tensor(read_item)[:1]


def test_a_faulty_planner_is_refused_and_no_target_changes(session, group, bundle):
    save(group, bundle, {"a": torch.ones(3, 2)})
    target = {"a": torch.full((3, 2), 7.0)}
    with pytest.raises(CheckpointException, match="saved shape"):
        dcp.load(target, storage_reader=ForebayReader(session, bundle), planner=Narrowing(), no_dist=True)
    assert (target["a"] == 7.0).all()


@pytest.mark.parametrize("source", ["session", "group"])
def test_strided_targets_are_filled_in_place(request, session, group, bundle, source):
    w = torch.arange(24.0).view(4, 6)
    save(group, bundle, {"columns": w, "transposed": w, "step": w})
    around = torch.full((4, 9), -1.0)
    target = {"columns": around[:, 2:8], "transposed": torch.zeros(6, 4).t(), "step": torch.zeros(4, 12)[:, ::2]}
    places = {key: tensor.data_ptr() for key, tensor in target.items()}
    load(request.getfixturevalue(source), bundle, target)
    assert all(tensor.equal(w) and tensor.data_ptr() == places[key] for key, tensor in target.items())
    assert (around[:, :2] == -1).all() and (around[:, 8:] == -1).all()


def test_strided_conjugate_and_tied_tensors_are_saved_as_they_look(session, group, bundle):
    w = torch.randn(5, 3)
    c = torch.randn(4, dtype=torch.complex64)
    state = {"t": w.t(), "every_second": w[::2], "conj": c.conj(), "tied": w, "tied_again": w, "param": torch.nn.Parameter(w)}
    save(group, bundle, state)
    loaded = load(session, bundle, {key: torch.zeros(t.shape, dtype=t.dtype) for key, t in state.items()})
    assert all(loaded[key].equal(tensor) for key, tensor in state.items())


def test_another_dtype_is_converted_like_stock_dcp_does(session, group, bundle):
    w = torch.randn(7)
    save(group, bundle, {"w": w})
    assert load(session, bundle, {"w": torch.zeros(7, dtype=torch.bfloat16)})["w"].equal(w.bfloat16())


def test_a_target_that_shares_memory_with_itself_is_refused(session, group, bundle):
    save(group, bundle, {"w": torch.ones(3, 4)})
    target = torch.zeros(4)
    with pytest.raises(CheckpointException, match="share memory"):
        load(session, bundle, {"w": target.expand(3, 4)})
    assert (target == 0).all()


def test_empty_tensors_are_legal(session, group, bundle):
    save(group, bundle, {"none": torch.zeros(0, 5), "one": torch.tensor(3)})
    loaded = load(session, bundle, {"none": torch.zeros(0, 5), "one": torch.tensor(0)})
    assert loaded["one"] == 3
    with pytest.raises(CheckpointException, match="Missing key"):
        load(session, bundle, {"never": torch.zeros(0, 5)})


def test_buffers_may_change_once_staging_is_complete(session, group, bundle):
    w = torch.ones(1 << 20)
    writer = ForebayWriter(group, bundle, 1)
    answer = dcp.async_save({"w": w}, storage_writer=writer, no_dist=True)
    answer.staging_completion.result()
    w.zero_()
    answer.upload_completion.result()
    assert load(session, bundle, {"w": torch.zeros_like(w)}, writer.save.version)["w"].equal(torch.ones_like(w))


def test_the_trainer_may_change_containers_after_staging(session, group, bundle):
    state = {"opt": {"w": torch.ones(2)}}
    writer = ForebayWriter(group, bundle, 1)
    staged = writer.stage(state)
    state["opt"]["later"] = torch.ones(2)
    assert set(staged.result()["opt"]) == {"w"}
    writer.save.durable.wait()


def test_same_structure_saves_new_contents(session, group, bundle):
    numbers = [save(group, bundle, {"w": torch.full((9,), float(s))}, step=s, same_structure=s > 0) for s in range(3)]
    assert numbers == sorted(numbers)
    for step, number in enumerate(numbers):
        assert (load(session, bundle, {"w": torch.zeros(9)}, number)["w"] == step).all()


def test_a_caching_planner_saves_new_contents(session, group, bundle):
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    for step in range(3):
        save(group, bundle, {"w": torch.full((9,), float(step)), "n": step}, step=step, planner=planner)
        loaded = load(session, bundle, {"w": torch.zeros(9), "n": -1})
        assert (loaded["w"] == step).all() and loaded["n"] == step


def test_dcp_must_use_the_writers_planner(group, bundle):
    first = ForebayWriter(group, bundle, 1)
    dcp.save({"w": torch.ones(2)}, storage_writer=first, planner=first.planner, no_dist=True)
    stale = ForebayWriter(group, bundle, 2, first.planner)
    with pytest.raises(CheckpointException, match="planner=writer.planner"):
        dcp.save({"w": torch.zeros(2)}, storage_writer=stale, no_dist=True)


def test_one_writer_serves_one_save(group, bundle):
    writer = ForebayWriter(group, bundle, 1)
    state = {"w": torch.ones(2)}
    dcp.save(state, storage_writer=writer, planner=writer.planner, no_dist=True)
    with pytest.raises(CheckpointException, match="one save"):
        dcp.save(state, storage_writer=writer, planner=writer.planner, no_dist=True)
    with pytest.raises(RuntimeError, match="one save"):
        writer.stage(state)


def test_the_process_checkpointer_is_refused_before_anything_is_offered(group, bundle):
    writer = ForebayWriter(group, bundle, 1)
    with pytest.raises(ValueError, match="AsyncCheckpointerType.THREAD"):
        dcp.async_save({"w": torch.ones(2)}, storage_writer=writer, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
    assert writer.save is None


def test_the_same_step_twice_fails_before_captured(group, bundle):
    save(group, bundle, {"w": torch.ones(2)}, step=1)
    writer = ForebayWriter(group, bundle, 1)
    with pytest.raises(forebay.Error):  # at submit, or by both futures
        answer = dcp.async_save({"w": torch.ones(2)}, storage_writer=writer, no_dist=True)
        with pytest.raises(forebay.Error):
            answer.staging_completion.result(60)
        answer.upload_completion.result(60)


class FailedSave:
    """Stands for a forebay save whose captured has failed before anyone looks."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def add(self, *args, **kwargs):
        pass

    @property
    def captured(self):
        return self

    def wait(self, timeout=None):
        raise forebay.Error("replicas differ")


def test_a_capture_that_failed_at_once_is_not_taken_for_staged():
    class Group:
        rank = 0

        def save(self, bundle, **options):
            return FailedSave()

    staged = ForebayWriter(Group(), "b", 1).stage({"w": torch.ones(2)})
    with pytest.raises(forebay.Error):
        staged.result(60)
    assert not staged.done()  # async_save would otherwise report success; by the call-back it reports the failure


def test_a_checkpoint_id_is_refused(group, bundle):
    writer = ForebayWriter(group, bundle, 1)
    with pytest.raises(ValueError, match="checkpoint_id"):
        dcp.save({}, checkpoint_id="/tmp/x", storage_writer=writer, planner=writer.planner, no_dist=True)


def test_a_version_of_another_kind_is_refused(session, group, bundle):
    with group.save(bundle, step=1) as plain:
        plain.add("w", b"1234")
    plain.durable.wait()
    with pytest.raises(CheckpointException, match="layout"):
        load(session, bundle, {"w": torch.zeros(1)})
