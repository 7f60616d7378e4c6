"""Dealing ordered names to groups, against trying out every way."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from gradforensics.checkpoints.dealing import Shape, deal, deal_by_rule

shapes = st.sampled_from([(2,), (3,), (2, 2)])


def every_way(names, groups):
    """All ways to deal: each name goes to one group or to none, every group is filled in order."""
    ways = []
    for choice in product(range(-1, len(groups)), repeat=len(names)):
        dealt = [
            [named for named, chosen in zip(names, choice, strict=True) if chosen == g] for g in range(len(groups))
        ]
        if all(
            len(part) == len(group) and all(slot in (None, shape) for (_, shape), slot in zip(part, group, strict=True))
            for part, group in zip(dealt, groups, strict=True)
        ):
            ways.append([[name for name, _ in part] for part in dealt])
    return ways


@given(
    st.lists(shapes, min_size=1, max_size=6),
    st.lists(st.lists(st.one_of(shapes, st.none()), max_size=3), min_size=1, max_size=3),
)
def test_ways_are_counted_as_trying_them_all_counts_them(listed, groups):
    names = [(f"p{index}", shape) for index, shape in enumerate(listed)]
    ways = every_way(names, groups)

    dealing = deal(names, groups)

    assert dealing.ways == min(len(ways), 2)
    assert dealing.dealt == (ways[0] if len(ways) == 1 else None)


@given(st.data(), st.lists(shapes, min_size=1, max_size=12))
def test_an_order_that_was_dealt_is_found_or_said_to_be_ambiguous(data, listed):
    names = [(f"p{index}", shape) for index, shape in enumerate(listed)]
    choice = [data.draw(st.integers(0, 2)) for _ in names]
    truth = [[named for named, chosen in zip(names, choice, strict=True) if chosen == group] for group in range(3)]

    dealing = deal(names, [[shape for _, shape in part] for part in truth])

    assert dealing.ways >= 1
    assert dealing.ways == 2 or dealing.dealt == [[name for name, _ in part] for part in truth]


def test_a_thousand_groups_of_one_shape_are_ambiguous_and_not_followed():
    names = [(f"p{index}", (4,)) for index in range(1000)]

    assert deal(names, [[(4,)] for _ in names]).ways == 2


def norms_and_biases():
    """BatchNorm's weight and bias have one shape: shapes alone do not tell which group got which."""
    return [
        ("conv.weight", (4, 3)),
        ("bn.weight", (4,)),
        ("bn.bias", (4,)),
        ("fc.weight", (2, 4)),
        ("fc.bias", (2,)),
    ]


def test_a_rule_tells_what_shapes_leave_open():
    names = norms_and_biases()
    groups: list[list[Shape | None]] = [[(4, 3), (4,), (2, 4)], [(4,), (2,)]]

    assert deal(names, groups).ways == 2
    assert deal_by_rule(names, groups, [0.1, 0.0]) == (
        "no weight decay for biases",
        [["conv.weight", "bn.weight", "fc.weight"], ["bn.bias", "fc.bias"]],
    )


def test_the_group_with_less_weight_decay_is_the_one_without():
    names = [("a.weight", (4,)), ("a.bias", (4,)), ("b.weight", (4,)), ("b.bias", (4,))]
    groups = [[(4,), (4,)], [(4,), (4,)]]
    weights, biases = ["a.weight", "b.weight"], ["a.bias", "b.bias"]

    assert deal_by_rule(names, groups, [0.1, 0.0]) == ("no weight decay for biases", [weights, biases])
    assert deal_by_rule(names, groups, [0.0, 0.1]) == ("no weight decay for biases", [biases, weights])
    assert deal_by_rule(names, groups, [0.1, 0.1]) is None
    assert deal_by_rule(names, groups, [None, 0.1]) is None


def test_rules_that_fit_with_different_names_decide_nothing():
    names = [("table.bias", (4, 4)), ("scale", (4,)), ("weight", (4, 4))]

    assert deal_by_rule(names, [[(4,), (4, 4)], [(4, 4)]], [0.1, 0.0]) == (
        "no weight decay for biases",
        [["scale", "weight"], ["table.bias"]],
    )
    assert deal_by_rule(names, [[None, None], [None]], [0.1, 0.0]) is None


def test_rules_need_two_groups_that_take_all_names():
    names = norms_and_biases()

    assert deal_by_rule(names, [[shape for _, shape in names]], [0.1]) is None
    assert deal_by_rule(names, [[(4, 3)], [(4,)]], [0.1, 0.0]) is None
