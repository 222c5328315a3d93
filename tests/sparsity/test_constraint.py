from __future__ import annotations

import pytest
import torch
from torch import nn

from pwoa.errors import InputError
from pwoa.recipe import SparsityRecipe
from pwoa.sparsity.allocation import sizes
from pwoa.sparsity.constraint import Count, count, count_multiply_adds, describe_size
from pwoa.sparsity.selection import prunable


class Net(nn.Module):
    """Every kind of prunable layer, things that are not, and two pairs of layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Conv1d(1, 2, 3)
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4))
        self.cube = nn.Conv3d(1, 2, 2)
        self.encoder = nn.Linear(5, 6)
        self.tied = nn.Linear(5, 6)
        self.tied.weight = self.encoder.weight
        self.again = self.stem[0]
        self.norm = nn.LayerNorm(6)
        self.table = nn.Embedding(3, 4)


def test_every_layer_is_found_once() -> None:
    net = Net()
    found = prunable(net)
    assert list(found) == ["line.weight", "stem.0.weight", "cube.weight", "encoder.weight", "table.weight"]
    assert found["stem.0.weight"] is net.stem[0].weight
    assert found["encoder.weight"] is net.tied.weight
    assert list(sizes(found).values()) == [6, 108, 16, 30, 12]


def test_the_names_are_those_of_the_state_dict() -> None:
    net = Net()
    assert all(torch.equal(net.state_dict()[name], weight) for name, weight in prunable(net).items())


def test_a_single_layer_is_a_model_too() -> None:
    layer = nn.Linear(3, 2)
    assert prunable(layer) == {"weight": layer.weight}


def test_a_model_without_anything_to_prune_is_refused() -> None:
    class Nothing(nn.Sequential):
        pass

    with pytest.raises(InputError, match="Nothing has no weights to prune"):
        prunable(Nothing(nn.ReLU(), nn.BatchNorm1d(3)))


def test_count_counts_the_weights_themselves() -> None:
    first, last = nn.Linear(4, 5), nn.Linear(5, 2)
    net = nn.Sequential(first, nn.ReLU(), last)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.fill_(1.0)
        first.weight[0, :] = 0
        first.weight[1, 2] = -0.0
        first.bias.zero_()
        last.weight.zero_()
    rows = count(net)
    assert rows == [Count("0.weight", 20, 15), Count("2.weight", 10, 0), Count("total", 30, 15)]
    assert rows[0].rate == 20 / 15
    assert rows[1].rate == float("inf")
    assert rows[2].rate == 2


def test_a_shared_weight_counts_once() -> None:
    assert count(Net())[-1].total == 6 + 108 + 16 + 30 + 12


def test_multiply_adds_are_those_of_the_whole_network_also_where_layers_are_left_out() -> None:
    first = nn.Conv2d(1, 2, 3)
    net = nn.Sequential(first, nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    with torch.no_grad():
        first.weight[0] = 0  # half of the convolution
    x = torch.zeros(1, 1, 6, 6)
    convolution, linear, dense = 4 * 4 * 2 * 9, 32 * 3, 4 * 4 * 2 * 9 + 32 * 3
    size = describe_size(net, SparsityRecipe(exclude=("2.*",)), x)
    assert size["rate"] == 2.0
    assert (size["macs"], size["macs_dense"]) == (convolution // 2 + linear, dense)
    assert size["macs_rate"] == dense / (convolution // 2 + linear)
    assert [row["macs_dense"] for row in size["sparsity"][:-1]] == [convolution]
    assert [(row.layer, row.kept) for row in count_multiply_adds(net, x)] == [
        *(("0.weight", convolution // 2), ("2.weight", linear), ("total", convolution // 2 + linear))
    ]
