"""The small model that runs on this machine: fetched once, served on loopback, ended by us."""
