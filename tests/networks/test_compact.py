import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from askew.networks import CompactResNet, CompactSettings, NetworkSettings

SMALL = {"widths": (4, 8, 8), "blocks": (1, 2, 1)}


@pytest.mark.parametrize("side", [8, 9, 15, 28, 33, 64])
@pytest.mark.parametrize("channels", [1, 3])
def test_any_side_from_8_gives_one_row_of_finite_logits_per_image(side, channels):
    network = CompactSettings(**SMALL).build(channels=channels, classes=7, side=side)
    logits = network.train()(torch.randn(2, channels, side, side))
    assert logits.shape == (2, 7)
    assert logits.dtype == torch.float32
    assert logits.isfinite().all()


def test_every_stage_after_the_first_halves_the_image_down_to_two_pixels():
    network = CompactResNet(channels=1, classes=2, side=64, widths=(4,) * 6, blocks=(1,) * 6).eval()
    sides = [network.blocks[: stage + 1](torch.zeros(1, 4, 32, 32)).shape[-1] for stage in range(6)]
    assert sides == [32, 16, 8, 4, 2, 2]
    assert network.stem(torch.zeros(1, 1, 64, 64)).shape[-1] == 32


def test_a_last_batch_of_one_view_can_be_trained_on():
    network = CompactResNet(channels=1, classes=2, side=8, **SMALL).train()
    assert network(torch.randn(1, 1, 8, 8)).isfinite().all()


def test_an_untrained_network_answers_every_question_evenly():
    network = CompactResNet(channels=1, classes=6, side=16, **SMALL).eval()
    assert not network(torch.randn(3, 1, 16, 16)).any()


def test_a_blocks_input_is_projected_only_where_its_shape_changes():
    network = CompactResNet(channels=1, classes=2, side=16, widths=(4, 8), blocks=(2, 2))
    assert [block.shortcut is not None for block in network.blocks] == [False, False, True, False]


def test_an_image_gets_the_answer_it_gets_alone():
    torch.manual_seed(0)
    network = CompactResNet(channels=1, classes=5, side=16, **SMALL).eval()
    nn.init.normal_(network.dense.weight)
    images = torch.randn(4, 1, 16, 16)
    with torch.inference_mode():
        torch.testing.assert_close(network(images)[2:3], network(images[2:3]))


def test_logits_are_float32_whatever_the_convolutions_ran_in():
    network = CompactResNet(channels=1, classes=5, side=16, **SMALL).eval()
    nn.init.normal_(network.dense.weight)
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert network(torch.randn(2, 1, 16, 16)).dtype == torch.float32


def test_every_parameter_learns():
    torch.manual_seed(0)
    network = CompactResNet(channels=1, classes=5, side=16, **SMALL)
    nn.init.normal_(network.dense.weight)
    network(torch.randn(4, 1, 16, 16)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


@pytest.mark.parametrize(
    "hostile",
    [
        {"widths": (), "blocks": ()},
        {"widths": (10**6,), "blocks": (1,)},
        {"widths": (4,), "blocks": (10**6,)},
        {"widths": (4,) * 7, "blocks": (1,) * 7},
        {"widths": (4, 8), "blocks": (1,)},
        {"widths": (4,), "blocks": (1,), "more": 1},
    ],
)
def test_settings_of_networks_that_cannot_be_are_refused(hostile):
    with pytest.raises(ValidationError):
        TypeAdapter(NetworkSettings).validate_python({"kind": "compact", **hostile})


def test_settings_come_back_from_json():
    adapter = TypeAdapter(NetworkSettings)
    settings = CompactSettings(**SMALL)
    assert adapter.validate_json(adapter.dump_json(settings)) == settings
