"""Tests of ampx.models.torchvision. The models are the smallest of their kind; no test downloads anything."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from ampx.models.torchvision import torchvision_model


def model(name: str = "shufflenet_v2_x0_5", weights: str | None = None, **sizes: int) -> nn.Module:
    torch.manual_seed(1)
    return torchvision_model(
        name=name, weights=weights, **{"in_channels": 3, "image_size": 32, "num_classes": 4, **sizes}
    )


class Touch:
    """Unpickling one makes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return (Path.touch, (self.file,))


@pytest.fixture
def trained() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    state = torchvision_model(
        name="shufflenet_v2_x0_5", weights=None, in_channels=3, image_size=32, num_classes=4
    ).state_dict()
    return {key: tensor.clone() for key, tensor in state.items()}


@pytest.mark.parametrize(
    ("name", "image_size"),
    [("vit_b_32", 64), ("swin_t", 32), ("googlenet", 32), ("mobilenet_v3_small", 32), ("squeezenet1_1", 32)],
)
def test_models_take_the_images_and_classes_of_the_data(name: str, image_size: int) -> None:
    """GoogLeNet gives plain logits in training mode: its auxiliary heads are left out."""
    with warnings.catch_warnings(), torch.device("meta"):  # shapes need no numbers
        warnings.simplefilter("error")
        built = model(name, image_size=image_size).train()
        assert built(torch.rand(2, 3, image_size, image_size)).shape == (2, 4)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", r"model\.name=resnet5: torchvision has no such model; did you mean resnet50\?"),
        ("zzzz", r"model\.name=zzzz: .*; torchvision\.models\.list_models\(\) has the names"),
        ("fcn_resnet50", r"model\.name=fcn_resnet50: is no classification model; choose one, such as"),
    ],
)
def test_unknown_names_and_other_kinds_of_models_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model(name)


def test_images_that_a_model_cannot_take_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.name=resnet18: .* 3 channels, but the data have 1; choose"):
        model("resnet18", in_channels=1)
    with pytest.raises(ValueError, match=r"data\.image_size=32: model\.name=alexnet needs at least 63; set"):
        model("alexnet", image_size=32)
    with pytest.raises(ValueError, match=r"data\.image_size=30: model\.name=vit_b_16 cannot be built for it"):
        model("vit_b_16", image_size=30)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors", ".nested.pth"])
def test_weights_come_from_a_file(tmp_path: Path, trained: dict[str, torch.Tensor], suffix: str) -> None:
    file = tmp_path / f"weights{suffix}"
    if suffix == ".safetensors":
        save_file(trained, file)
    else:
        torch.save({"model": trained} if "nested" in suffix else trained, file)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = model(weights=str(file)).state_dict()
    assert all(torch.equal(loaded[key], tensor) for key, tensor in trained.items())


def test_weights_of_other_classes_keep_the_body_and_start_the_head_afresh(
    tmp_path: Path, trained: dict[str, torch.Tensor]
) -> None:
    torch.save(trained, tmp_path / "weights.pth")
    with pytest.warns(UserWarning, match=r"not the data's 7 classes; fc\.bias, fc\.weight start afresh"):
        loaded = model(weights=str(tmp_path / "weights.pth"), num_classes=7).state_dict()
    assert loaded["fc.weight"].shape[0] == 7
    assert all(
        torch.equal(loaded[key], tensor) for key, tensor in trained.items() if not key.startswith("fc.")
    )


def test_weights_of_another_model_are_refused(tmp_path: Path, trained: dict[str, torch.Tensor]) -> None:
    torch.save(trained, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"weights\.pth: does not fit this model"):
        model("shufflenet_v2_x1_0", weights=str(tmp_path / "weights.pth"))
    with pytest.raises(ValueError, match=r"weights\.pth: is not of this model: .* are only in one"):
        model("squeezenet1_1", weights=str(tmp_path / "weights.pth"))


def test_a_file_that_is_no_state_dict_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"weights\.pth must be a state dict .*; give a file written by"):
        model(weights=str(tmp_path / "weights.pth"))


def test_a_file_with_pickled_code_is_not_run(tmp_path: Path) -> None:
    """Breaking it: torch.load with weights_only=False, which runs what the file says."""
    torch.save({"weight": Touch(tmp_path / "was run")}, tmp_path / "weights.pth")
    with pytest.raises(ValueError, match=r"without running pickled code; give a file written by"):
        model(weights=str(tmp_path / "weights.pth"))
    assert not (tmp_path / "was run").exists()


def test_named_weights_are_taken_from_the_cache_and_never_downloaded(
    tmp_path: Path, trained: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.models import ShuffleNet_V2_X0_5_Weights

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    cached = tmp_path / "hub" / "checkpoints" / Path(ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1.url).name
    with pytest.raises(ValueError, match=rf"ampx downloads no weights; fetch https://.* to {cached}"):
        model(weights="IMAGENET1K_V1")
    cached.parent.mkdir(parents=True)
    torch.save(trained, cached)
    assert torch.equal(model(weights="IMAGENET1K_V1").state_dict()["fc.weight"], trained["fc.weight"])


def test_weights_that_are_neither_a_name_nor_a_file_are_refused() -> None:
    with pytest.raises(ValueError, match=r"model\.weights=IMAGENET1K_V9: .*did you mean IMAGENET1K_V1\?"):
        model(weights="IMAGENET1K_V9")
    with pytest.raises(ValueError, match=r"model\.weights=/no/file: .*shufflenet_v2_x0_5 has IMAGENET1K_V1"):
        model(weights="/no/file")
