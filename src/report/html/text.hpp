// SPDX-License-Identifier: Apache-2.0
// Pieces of HTML. Whatever comes from results or files goes through escaped(). Private to report.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "evidence/result.hpp"
#include "report/numbers.hpp"
#include "report/pictures/svg.hpp"

namespace aisp::report::html {

// For text and for attributes in double quotes. Bytes that are no UTF-8 and control characters become U+FFFD; lines stay lines.
std::string escaped(std::string_view text);
// A name for ids and links: everything but letters, digits and '-' is spelled out, so that two texts never share one.
std::string id_of(std::string_view text);

// C++ and CUDA with a tag around each token that has a colour.
std::string highlighted(std::string_view source);

// Escaped; its lines may end after an underscore.
std::string breakable(std::string_view name);
// The pair's name, which leads to its own part of the page.
std::string link_to(const evidence::PairResult& pair);

// Contents are HTML already.
std::string tag(std::string_view name, std::string_view content, std::string_view attributes = {});
// For the whole of one row or heading of a table, and a table that scrolls by itself where it is too wide.
std::string row(const std::vector<std::string>& cells);
std::string table(std::string_view label, const std::vector<std::string>& heading, const std::string& rows);
// The same of texts, headings first; empty where nothing is below them.
std::string text_table(std::string_view label, const Rows& cells);
// Folded away until someone asks.
std::string folded(std::string_view summary, std::string_view content);

// Compressed. The page's script puts it in its place when what it stands in is opened.
std::string packed(const std::string& content);
// Compressed and not shown; the page's script takes it from under this id.
std::string stored(const std::string& id, const std::string& content);
// Several texts by their ids, compressed as one, because files of a chapter resemble each other. None has a form feed.
std::string stored_together(const std::vector<std::pair<std::string, std::string>>& texts);

// A picture as wide as the page, and one for narrow screens.
std::string figure(const std::function<svg::Picture(double width)>& draw, double wide_px = svg::wide_px);

std::string time_text(double milliseconds);  // "3.58 µs", "12.4 ms"
std::string_view role_text(evidence::VariantRole role);
std::string badge(evidence::Status status);
std::string badge(evidence::Verdict verdict);

}  // namespace aisp::report::html
