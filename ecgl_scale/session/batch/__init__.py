"""Scripts for batch systems: what a job must ask for, by the plan of its run, and how it goes on when its time is up.

``needs`` turns a plan into memory, cores and time of a node; ``script`` fills the templates, one a batch system. A
script is for people to read and change: it says beside each line why it is there.
"""
