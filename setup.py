"""Adds the generator of the demo's records, which is kept beside its files, to the package."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[
        *find_namespace_packages(include=["dpsynth_assets", "dpsynth_assets.*"]),
        "dpsynth_assets.demo",
        "dpsynth_assets.demo.mailboxes",
    ],
    package_dir={"dpsynth_assets.demo": "data/demo"},
)
