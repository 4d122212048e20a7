"""Workers of Cloudera's workbench (CDSW, Cloudera Machine Learning): Muster inside one of its sessions."""

from muster.platforms.workbench.clients import Client, LibraryClient, RestClient
from muster.platforms.workbench.platform import WorkbenchPlatform

__all__ = ["Client", "LibraryClient", "RestClient", "WorkbenchPlatform"]
