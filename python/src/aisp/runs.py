# SPDX-License-Identifier: Apache-2.0
"""The folders that `aisp run` writes, as pandas frames. Names of columns are those of docs/report-formats.md, joined by dots."""
import dataclasses
import json
import os
import pathlib

from aisp.results import Error

LOG, MANIFEST = "results.jsonl", "manifest.json"


@dataclasses.dataclass(frozen=True)
class Runs:
    """One run, or several in one set of frames; `run_id` tells them apart."""

    pairs: "pandas.DataFrame"  # one row a pair; of a sweep, one a case of it
    variants: "pandas.DataFrame"  # one row a variant: times, speedup, floor, accuracy, and what it ran on
    samples: "pandas.DataFrame"  # one row a timed sample
    manifests: dict  # of each run: program, machine and settings


def load(*runs, artifacts="artifacts"):
    """Reads runs: each is a folder, a name below `artifacts`, or "latest"."""
    pandas = _pandas()
    if not runs:
        raise Error('aisp.load needs a run: a folder, a name below artifacts, or "latest"')
    pairs, variants, samples, manifests = [], [], [], {}
    for run in runs:
        folder = _folder(run, pathlib.Path(artifacts))
        manifest = _json(folder / MANIFEST)
        run_id = manifest["run_id"]
        if run_id in manifests:
            raise Error(f"two runs are called {run_id}; rows of one could not be told from rows of the other")
        manifests[run_id] = manifest
        # In a merged run each result names its machine; in every other run the manifest is that of the machine.
        machines = {machine["machine"]: machine for machine in manifest.get("machines", ())}
        for result in _results(folder / LOG):
            machine = machines.get(result.get("machine"), manifest)
            gpus = {gpu["uuid"]: gpu["name"] for gpu in machine["gpus"]}
            origin = {"run_id": run_id, "commit": manifest["commit"], "cpu": machine["cpu"]}
            place = {**origin, "gpu": ", ".join(gpus.get(uuid, uuid) for uuid in result["gpus"]),
                     **{name: result[name] for name in ("target", "chapter", "name", "case", "device")}}
            pairs.append({**place, **_scalars(result)})
            for variant in result["variants"]:
                named = {**place, "variant": variant["name"], "is_best": variant["name"] == result["best"]}
                variants.append({**named, **{key: value for key, value in _scalars(variant).items() if key != "name"}})
                samples.extend(_samples(named, variant.get("timing") or {}))
    return Runs(pandas.DataFrame(pairs), pandas.DataFrame(variants), pandas.DataFrame(samples), manifests)


def _pandas():
    try:
        import pandas
    except ImportError as error:
        raise Error('aisp.load gives pandas frames, and pandas is not installed; pip install pandas', 4) from error
    return pandas


def _is_run(folder):
    return (folder / LOG).is_file()


def _folder(run, artifacts):
    if not isinstance(run, (str, os.PathLike)):
        raise Error(f"aisp.load takes each run by itself, a folder or a name, not {run!r}")
    if run == "latest":
        found = [folder for folder in artifacts.glob("*") if _is_run(folder)]
        if not found:
            raise Error(f"there is no run below {artifacts}")
        return max(found, key=lambda folder: (_header(folder / LOG)["started_utc"], folder.name))
    for folder in (artifacts / run, pathlib.Path(run)):
        if _is_run(folder):
            return folder
    raise Error(f"there is no run '{os.fspath(run)}', here or below {artifacts}")


def _json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise Error(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Error(f"{path} is not JSON: {error}") from error


def _lines(path):
    """Without a last line that a crash cut short."""
    text = path.read_text(encoding="utf-8")
    return text[:text.rfind("\n") + 1].splitlines()


def _header(path):
    lines = _lines(path)
    try:
        header = json.loads(lines[0])
        if header["kind"] != "aisp results log":
            raise ValueError
    except (LookupError, TypeError, ValueError):
        raise Error(f"{path} is no results log of aisp") from None
    if header["schema_version"] != 1:
        raise Error(f"{path} has schema_version {header['schema_version']}; this reader knows 1")
    return header


def _results(path):
    """Of two results of one target, or of one case of it, the later counts."""
    _header(path)
    found = {}
    for number, line in enumerate(_lines(path)[1:], start=2):
        try:
            result = json.loads(line)
        except ValueError as error:
            raise Error(f"{path}:{number} is not JSON: {error}") from error
        found[result["target"], result["case"]] = result
    return found.values()


def _scalars(value, prefix=""):
    """Everything but lists, objects flattened: {"timing": {"median_ms": 1}} is {"timing.median_ms": 1}."""
    flat = {}
    for key, inner in value.items():
        if isinstance(inner, dict):
            flat.update(_scalars(inner, f"{prefix}{key}."))
        elif not isinstance(inner, list):
            flat[prefix + key] = inner
    return flat


def _samples(named, timing):
    rounds = timing.get("rounds") or []
    for index, milliseconds in enumerate(timing.get("raw_times_ms") or []):
        yield {**named, "sample": index, "round": rounds[index] if index < len(rounds) else None, "milliseconds": milliseconds}
