# SPDX-License-Identifier: Apache-2.0
"""Reads the compressed parts of an HTML report, as the page's own script does."""
import base64
import re
import zlib


def inflated(text):
    return zlib.decompress(base64.b64decode(text), -15).decode()


def opened(page):
    """The page with what is compressed in its place, and whole files for parts of them."""
    rows = re.search(r'<div id="all-rows" data-deflated="([^"]*)" hidden>', page)[1]
    files = {}
    for ids, texts in re.findall(r'<div data-holds="([^"]+)" data-deflated="([^"]*)" hidden>', page):
        files.update(zip(ids.split(" "), inflated(texts).split("\f"), strict=True))
    page = re.sub(r'<div class="packed" data-deflated="([^"]*)">.*?</p></div>\n', lambda match: inflated(match[1]), page, flags=re.S)
    page = re.sub(r'<code data-from="([^"]*)"[^>]*>', lambda match: "<code>" + files[match[1]], page)
    return page.replace("</table>", inflated(rows) + "</table>", 1)
