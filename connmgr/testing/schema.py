"""The part of the suite that checks how a connection type describes itself."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from connmgr.fields import every_field, map_secrets
from connmgr.plugin import AnyConnectionType, Reference, ValidationError
from connmgr.registry import USAGE_CATEGORIES

UNKNOWN = "aFieldThatNoTypeHas"


class SchemaConformance:
    """Checks name, description, fields and example of a connection type; ``kind`` is a fixture of the subclass."""

    @pytest.fixture
    def kind(self) -> AnyConnectionType:
        """The connection type to test."""
        raise NotImplementedError("Give the test class a fixture `kind` that returns the connection type.")

    @pytest.fixture
    def data(self, kind: AnyConnectionType) -> Mapping[str, Any]:
        """Valid data without ``type``, as a client sends it, secrets in plain."""
        return kind.example

    @pytest.fixture
    def loaded(self, kind: AnyConnectionType, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """``data`` as the schema loads it; tests must not change it."""
        loaded = kind.schema().load(data)
        before = copy.deepcopy(loaded)
        yield loaded
        assert loaded == before, "the data that it was given is not the type's to change"

    def test_the_name_is_a_word(self, kind: AnyConnectionType) -> None:
        assert kind.name.isascii(), "a name is typed by people and matched by filters"
        assert kind.name.replace("-", "").isalnum(), "a name is letters, digits and hyphens"

    def test_the_description_is_a_sentence(self, kind: AnyConnectionType) -> None:
        assert kind.description.endswith(".")
        assert kind.description == " ".join(kind.description.split()), "it is shown on one line"

    def test_the_usage_category_is_one_of_the_four(self, kind: AnyConnectionType) -> None:
        assert kind.usage_category in USAGE_CATEGORIES

    def test_every_field_is_described(self, kind: AnyConnectionType) -> None:
        missing = [
            path
            for path, field in every_field(kind.schema())
            if not (path.endswith("[]") or field.metadata.get("description"))
        ]
        assert missing == [], 'clients see metadata={"description": "…"}'

    def test_the_example_is_valid(self, kind: AnyConnectionType) -> None:
        assert kind.schema().validate(kind.example) == {}

    def test_via_names_a_reference(self, kind: AnyConnectionType) -> None:
        references = {path for path, field in every_field(kind.schema()) if isinstance(field, Reference)}
        assert kind.via in references if references else kind.via is None

    def test_an_unknown_field_is_refused(self, kind: AnyConnectionType, data: Mapping[str, Any]) -> None:
        with pytest.raises(ValidationError) as refusal:
            kind.schema().load({**data, UNKNOWN: 1})
        assert UNKNOWN in refusal.value.messages, "derive the schema from connmgr.plugin.Schema"

    def test_no_field_takes_the_name_of_the_type_field(self, kind: AnyConnectionType) -> None:
        assert "type" not in kind.schema().fields

    def test_loading_what_was_loaded_changes_nothing(self, kind: AnyConnectionType, loaded: dict[str, Any]) -> None:
        # A client may send back what it read.
        assert kind.schema().load(loaded) == loaded


def secrets_of(kind: AnyConnectionType, loaded: Mapping[str, Any]) -> list[str]:
    """Return the secrets of loaded data, in plain."""
    found: list[str] = []
    map_secrets(kind.schema(), loaded, found.append)
    return found
