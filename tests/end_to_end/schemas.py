# SPDX-License-Identifier: Apache-2.0
"""The JSON Schemas in docs/schema, and what is wrong with a value by one of them."""
import json
import re
import warnings

from harness import SOURCE

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    # Later versions prefer another resolver, which the one of Debian 12 and Ubuntu 24.04 does not have.
    from jsonschema import Draft202012Validator, RefResolver

SCHEMAS = SOURCE / "docs/schema"
PAGE = SOURCE / "docs/report-formats.md"
NAMES = ("analysis", "comparison", "configuration", "counted", "doctor", "estimate", "expectations", "explain", "history", "levels",
         "links", "manifest", "peak", "result", "results-log", "roofline", "selftest", "specs", "suite", "sweep", "targets", "topology")


def load(name):
    return json.loads((SCHEMAS / f"{name}.schema.json").read_text())


def validator(name, part=None):
    """Returns the validator of a whole schema, or of one of its $defs."""
    schema = load(name) if part is None else {"$ref": f"{name}.schema.json#/$defs/{part}"}
    return Draft202012Validator(schema, resolver=RefResolver((SCHEMAS / f"{name}.schema.json").as_uri(), load(name)))


def mistakes(value, name, part=None):
    return [f"{'/'.join(map(str, error.absolute_path))}: {error.message[:300]}" for error in validator(name, part).iter_errors(value)]


def section(title):
    """Returns the part of the page from the heading that names `title` to the next heading."""
    return next(part for part in re.split(r"(?m)^## ", PAGE.read_text()) if title in part.splitlines()[0])
