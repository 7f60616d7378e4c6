"""The logs of public incidents, judged by the whole catalogue."""

import pytest

from gradforensics.diagnosis.causes import diagnose
from gradforensics.diagnosis.rules import load_rules
from gradforensics.evidence.gather import gather


@pytest.fixture(scope="session")
def rules():
    return load_rules(examples=False)


@pytest.fixture
def judged(tmp_path, rules):
    """Judge a run of one file (or of a mapping of names to texts): its diagnosis, and the verdicts by case."""

    def judge(text, name="train.log", **settings):
        folder = tmp_path / "run"
        for path, content in (text if isinstance(text, dict) else {name: text}).items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content)
        (found,) = gather([folder], settings=settings)
        diagnosis = diagnose(found, rules)
        return diagnosis, {v.rule.id: v for v in diagnosis.verdicts}

    return judge
