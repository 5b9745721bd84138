"""Consumers on the server: create, update, info, list, pause, delete. Configurations are the server's own JSON."""

from __future__ import annotations

from kvctl.jetstream.ordered import OrderedConsumer as OrderedConsumer
from kvctl.jetstream.ordered import Selection as Selection
from kvctl.jetstream.ordered import read as read
