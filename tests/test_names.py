import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ampx.names import safe_name


@pytest.mark.parametrize("name", ["digits", "bf16_run.2", "a-b", "größe", "lr0.1+x@y"])
def test_a_fit_name_stays_as_it_is(name: str) -> None:
    assert safe_name(name) == name


@pytest.mark.parametrize(
    "name", ["a=b", "a,b", "../up", "a/b", "-rf", ".hidden", "two words", "$(id)", "a\nb", "a" * 300]
)
def test_an_unfit_name_is_cleaned_and_stays_told_apart(name: str) -> None:
    assert safe_name(name) != name
    assert safe_name(name) == safe_name(name)
    assert safe_name(name) != safe_name(name + " ")


def test_a_name_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"name='  ': is empty; give it a letter"):
        safe_name("  ")


@given(st.text(min_size=1).filter(str.strip) | st.text("aß*", min_size=30, max_size=200))
def test_no_name_reaches_a_path_or_a_shell_unescaped(text: str) -> None:
    name = safe_name(text)
    assert name
    assert len(name.encode()) <= 150
    assert name[0] not in ".-"
    assert not set(name) & set("=/\\\0\n\r\t '\"$`;&|<>*?~#!()[]{}")
    assert shlex.split(name) == [name]
    assert safe_name(name) == name
