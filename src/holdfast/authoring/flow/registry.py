"""Registry of an app's flows: the newest version by bare name, and all versions.

Several versions are available, as in the database: a run of an older version can still be started by its number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.authoring.flow.flow import Flow
from holdfast.errors import Invalid


class FlowRegistry(Mapping[str, Flow[...]]):
    """Flows by name. `versions` has all of them."""

    def __init__(self) -> None:
        self.versions: dict[tuple[str, int], Flow[...]] = {}
        self._newest: dict[str, Flow[...]] = {}

    def __getitem__(self, name: str) -> Flow[...]:
        return self._newest[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._newest)

    def __len__(self) -> int:
        return len(self._newest)

    def keep(self, flow: Flow[Any]) -> Flow[Any]:
        """Add a flow; raise `Invalid` if that version exists already."""
        if (flow.name, flow.version) in self.versions:
            raise Invalid(
                f"Version {flow.version} of the flow {flow.name} is registered twice.",
                code="flow_exists",
                advice="Give one another name or another version.",
            )
        self.versions[flow.name, flow.version] = flow
        known = self._newest.get(flow.name)
        if known is None or known.version < flow.version:
            self._newest[flow.name] = flow
        return flow


def every_version(flows: Mapping[str, Flow[...]]) -> list[Flow[...]]:
    """Return all versions, older ones first; a plain mapping has one version of each flow."""
    found = flows.versions.values() if isinstance(flows, FlowRegistry) else flows.values()
    return sorted(found, key=lambda flow: (flow.name, flow.version))
