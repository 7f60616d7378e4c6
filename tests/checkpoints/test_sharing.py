"""Names of optimizer states that the checkpoints of a run tell each other."""

from gradforensics.checkpoints.model import Naming
from gradforensics.checkpoints.optimizer import read_optimizer
from gradforensics.checkpoints.refs import TensorRef
from gradforensics.checkpoints.sharing import Told, shared

SHAPES = {"a": (4, 2), "b": (4, 2), "c": (3,), "d": (3,)}
ALL = dict(zip("0123", "abcd", strict=True))


def told(names, sure, *, like=("optimizer", None), shapes=SHAPES, states=(4, 2), ids=4):
    """One checkpoint's optimizer of four parameters in one group, the first two with states of shape `states`."""
    forms = [states, states, (3,), (3,)][:ids]
    moments = {
        number: {"exp_avg": TensorRef("float32", form, ()), "exp_avg_sq": TensorRef("float32", form, ())}
        for number, form in enumerate(forms)
        if states is not None
    }
    state = read_optimizer({"state": moments, "param_groups": [{"params": list(range(ids)), "lr": 1e-3}]})
    return Told(state, like, shapes, names, Naming("It was so.", sure))


def test_certain_names_reach_checkpoints_that_know_less():
    first, second, third = shared([told({}, "none"), told(ALL, "confirmed"), told({"0": "a"}, "likely")])
    assert first[0] == third[0] == ALL
    assert first[1].sure == third[1].sure == "confirmed"
    assert first[1].how == "4 of 4 states have a name, by what all checkpoints with these groups tell."
    assert second[1].how == "It was so."


def test_a_checkpoint_without_states_takes_the_names_of_the_same_groups():
    (names, naming), _ = shared([told({}, "none", states=None), told(ALL, "confirmed")])
    assert (names, naming.sure) == (ALL, "confirmed")


def test_what_several_know_is_put_together():
    found = shared([told({"0": "a", "1": "b"}, "confirmed"), told({"2": "c", "3": "d"}, "confirmed")])
    assert [names for names, _ in found] == [ALL, ALL]
    likely = shared([told({"0": "a"}, "likely"), told({"2": "c"}, "likely")])
    assert [(names, naming.sure) for names, naming in likely] == [({"0": "a", "2": "c"}, "likely")] * 2
    assert likely[0][1].how.endswith("; 2 keep their ids.")


def test_contradictions_help_nobody():
    swapped = {**ALL, "0": "b", "1": "a"}
    for other in (swapped, {**ALL, "1": "a", "0": "x"}):
        given = [told(ALL, "confirmed"), told(other, "confirmed"), told({}, "none")]
        assert [names for names, _ in shared(given)] == [ALL, other, {}]
    names, naming = shared([told(ALL, "confirmed"), told({"0": "b"}, "likely")])[1]
    assert (names, naming.sure) == ({"0": "b"}, "likely")


def test_other_groups_places_shapes_and_parameters_are_other_optimizers():
    strangers = (
        told({}, "none", ids=3),
        told({}, "none", like=("critic", None)),
        told({}, "none", like=("optimizer", 1)),
        told({}, "none", states=(2, 4)),
        told({}, "none", shapes={**SHAPES, "a": (9, 9)}),
        told({}, "none", shapes={"a": (4, 2)}),
    )
    for stranger in strangers:
        assert shared([told(ALL, "confirmed"), stranger])[1][0] == {}


def test_few_certain_names_do_not_replace_more_likely_ones():
    names, naming = shared([told({"2": "c"}, "confirmed"), told({"0": "a", "1": "b"}, "likely")])[1]
    assert (names, naming.sure) == ({"2": "c", "0": "a", "1": "b"}, "likely")
