# SPDX-License-Identifier: Apache-2.0
"""Numbers as aisp prints them: src/base/text.cpp and src/report/numbers.cpp, for what scripts write."""
import math


def rounded_half_up(value):
    return math.copysign(math.floor(abs(value) + 0.5), value)


def significant(value, digits=3):
    """"0.0123", "4.25", "717": never an exponent below 1e15."""
    if value == 0:
        return "0"
    if abs(value) >= 1e15:
        return f"{value:.{max(0, digits - 1)}e}"

    def decimals_of(number):
        return max(0, digits - 1 - math.floor(math.log10(abs(number))))

    decimals = min(decimals_of(value), 20)
    rounded = rounded_half_up(value * 10.0**decimals) / 10.0**decimals  # 9.996 with three digits is 10.0, not 10.00
    return f"{value:.{min(decimals, decimals_of(rounded)) if rounded else decimals}f}"


def with_prefix(value, prefixes):
    """(value, prefix), divided by 1000 as often as prefixes allow."""
    place = 0
    while abs(value) >= 999.5 and place + 1 < len(prefixes):
        value /= 1000
        place += 1
    return value, prefixes[place]


def human_rate(per_second, unit):
    """(4.25e12, "B"): "4.25 TB/s"."""
    value, prefix = with_prefix(per_second, ["", "k", "M", "G", "T", "P", "E"])
    return f"{significant(value)} {prefix}{unit}/s"


def human_bytes(count):
    """"1.5 GiB", "512 B"."""
    units, unit = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 0
    while abs(count) >= 1023.95 and unit + 1 < len(units):
        count /= 1024
        unit += 1
    whole = unit == 0 or abs(count - rounded_half_up(count)) < 0.05 or abs(count) >= 100
    return f"{count:.{0 if whole else 1}f} {units[unit]}"


def display_ms(milliseconds):
    """"3.58 us", "12.4 ms", "1.23 s"."""
    magnitude = abs(milliseconds)
    if magnitude == 0:
        return "0 ms"
    if magnitude < 0.9995e-3:
        return significant(milliseconds * 1e6) + " ns"
    if magnitude < 0.9995:
        return significant(milliseconds * 1e3) + " us"
    return significant(milliseconds) + " ms" if magnitude < 999.5 else significant(milliseconds / 1e3) + " s"


def whole_percent(percent):
    return f"{percent:.0f} %"


def plural(count, noun):
    return f"{count} {noun}{'' if count == 1 else 's'}"


def metric_number(metric):
    """"5.21M" of tokens/s, "0.0123", "4": prefixes stand in rates only, for "2k ms" is no time."""
    prefixes = ["", "k", "M", "G", "T"] if metric.unit.endswith("/s") else [""]
    value, prefix = with_prefix(metric.value, prefixes)
    is_whole = not prefix and value == rounded_half_up(value) and abs(value) < 1e15  # counts stay counts: 8 splits, not 8.00
    return (f"{value:.0f}" if is_whole else significant(value)) + prefix


def metric_text(metric):
    return f"{metric_number(metric)} {metric.unit}".rstrip()
