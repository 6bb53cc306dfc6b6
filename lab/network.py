"""The network between the hosts of a lab: rates, racks, and caps of single flows; and their options."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

#: Factor for the number of connections that fill a link. Two connections may fall into one class of a cap and
#: then share its rate.
FLOWS_TO_SPARE = 2


@dataclass(frozen=True)
class Network:
    """Rates in Mbit/s, each way. None: no limit."""

    rate_mbit: float | None = None
    """Rate of each host's link, unless another one is given for it."""
    hosts_per_rack: int | None = None
    """None: all hosts are on one switch."""
    uplink_mbit: float | None = None
    """Rate of a rack to all other racks together."""
    flow_cap_mbit: float | None = None
    """Largest rate of one TCP connection."""

    def __post_init__(self) -> None:
        if self.uplink_mbit is not None and self.hosts_per_rack is None:
            raise ValueError("an uplink without racks")
        if self.hosts_per_rack is not None and self.hosts_per_rack < 1:
            raise ValueError(f"{self.hosts_per_rack} hosts in a rack")

    def __str__(self) -> str:
        told = "no limit" if self.rate_mbit is None else f"{self.rate_mbit:g} Mbit/s"
        if self.hosts_per_rack is not None:
            uplink = "" if self.uplink_mbit is None else f" behind {self.uplink_mbit:g} Mbit/s"
            told += f", racks of {self.hosts_per_rack}{uplink}"
        if self.flow_cap_mbit is not None:
            told += f", {self.flow_cap_mbit:g} Mbit/s a flow"
        return told

    @property
    def is_plain(self) -> bool:
        """Whether all hosts have the same distance, and one flow fills a link."""
        return self.hosts_per_rack is None and self.flow_cap_mbit is None

    @property
    def flows_to_fill(self) -> int:
        """Number of connections between two hosts that fill a link."""
        if self.flow_cap_mbit is None:
            return 1
        if self.rate_mbit is None:
            raise ValueError("no number of capped flows fills a link without a rate")
        return FLOWS_TO_SPARE * math.ceil(self.rate_mbit / self.flow_cap_mbit)

    def racks(self, hosts: int) -> range:
        """Numbers of the racks of so many hosts."""
        return range(math.ceil(hosts / self.hosts_per_rack) if self.hosts_per_rack is not None else 0)

    def rack_of(self, host: int) -> int | None:
        return None if self.hosts_per_rack is None else host // self.hosts_per_rack


def add_network_options(options: argparse.ArgumentParser) -> None:
    """Adds the options of the network, except ``--rate``."""
    options.add_argument("--racks", type=int, metavar="M", help="hosts in racks of so many each")
    options.add_argument(
        "--uplink",
        type=float,
        metavar="RATE",
        help="Mbit/s from each rack to the others, each way; limits are of the hosts' links alone",
    )
    options.add_argument("--flow-cap", type=float, metavar="RATE", help="Mbit/s of one TCP connection")


def network_asked_for(options: argparse.ArgumentParser, arguments: argparse.Namespace) -> Network:
    """The network of the options. Invalid options end the program."""
    try:
        return Network(arguments.rate, arguments.racks, arguments.uplink, arguments.flow_cap)
    except ValueError as senseless:
        options.error(str(senseless))
