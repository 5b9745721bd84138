"""A table in both modes: all partitions in one stream, and a stream for each."""

import pytest

from kvctl.tables import catalog
from kvctl.tables.config import TableConfig
from kvctl.tables.table import Table


@pytest.fixture(params=[False, True], ids=["shared", "apart"])
def apart(request):
    """Return whether each partition is a separate stream."""
    return bool(request.param)


@pytest.fixture
async def table(client, unique, apart):
    """An empty table of four partitions."""
    config = TableConfig(unique("T"), partitions=4, apart=apart)
    await catalog.create(client.api, config)
    yield await Table.open(client.api, config.name)
    await catalog.delete(client.api, config.name)
