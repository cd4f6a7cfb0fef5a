// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.hpp"
#include "machine/host.hpp"
#include "machine/topology/topology_parts.hpp"

namespace aisp::machine {
namespace {

constexpr std::size_t fact_column = 18;  // two blanks, the longest label, two blanks

std::vector<std::size_t> column_widths(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  return widths;
}

std::string joined(const std::vector<std::string>& row, const std::vector<std::size_t>& widths) {
  std::string text;
  for (std::size_t i = 0; i < row.size(); ++i) {
    text += row[i];
    if (i + 1 < row.size()) text += std::string(widths[i] - row[i].size() + 2, ' ');
  }
  return text.substr(0, text.find_last_not_of(' ') + 1);
}

// Returns where to cut a line that is too long: after the last space or comma that fits, else at the width.
std::size_t cut(std::string_view words, std::size_t room) {
  if (words.size() <= room) return words.size();
  const std::size_t blank = words.substr(0, room + 1).rfind(' '), comma = words.substr(0, room).rfind(',');
  if (blank != std::string_view::npos && blank > 0) return blank;
  return comma == std::string_view::npos ? room : comma + 1;
}

std::string title(const Topology& topology) {
  const Host& host = topology.machine.host;
  std::vector<std::string> parts;
  for (const std::string& part : {host.hostname, host.system, host.kernel})
    if (!part.empty()) parts.push_back(part);
  if (!host.virtualization.empty()) parts.push_back("virtualization: " + host.virtualization);
  if (!host.container.empty()) parts.push_back("container: " + host.container);
  return base::join(parts, ", ");
}

}  // namespace

void TopologyText::heading(std::string_view text) {
  if (!text_.empty()) text_ += '\n';
  text_ += paint_(base::Style::bold, text) + '\n';
}

void TopologyText::line(std::string_view label, std::size_t indent, std::string_view words, std::size_t hanging) {
  std::string start = "  " + std::string{label};
  start.resize(std::max(start.size() + (label.empty() ? 0 : 1), indent), ' ');
  for (std::size_t column = indent; !words.empty(); column = hanging) {
    const std::size_t room = std::max<std::size_t>(20, width_ - std::min(width_, column));
    const std::size_t length = cut(words, room);
    text_ += start + std::string{words.substr(0, length)} + '\n';
    words.remove_prefix(length);
    while (words.starts_with(' ')) words.remove_prefix(1);
    start.assign(hanging, ' ');
  }
}

void TopologyText::add(std::string_view label, std::string_view fact) { line(label, fact_column, fact, fact_column); }

void TopologyText::table(std::string_view label, const std::vector<std::vector<std::string>>& rows) {
  const std::vector<std::size_t> widths = column_widths(rows);
  for (const auto& row : rows) {
    std::size_t hanging = fact_column;
    for (std::size_t i = 0; i + 1 < row.size(); ++i) hanging += widths[i] + 2;
    line(label, fact_column, joined(row, widths), hanging);
    label = {};
  }
}

void TopologyText::matrix(const std::vector<std::vector<std::string>>& rows) {
  const std::vector<std::size_t> widths = column_widths(rows);
  for (const auto& row : rows) text_ += "  " + joined(row, widths) + '\n';
}

std::string topology_text(const Topology& topology, const base::Painter& paint, std::size_t width) {
  TopologyText sheet{paint, width};
  sheet.heading("Host");
  sheet.add("system", title(topology));
  describe_host(topology, sheet);
  if (topology.machine.gpus.empty()) {
    sheet.heading("GPUs");
    const std::string& advice = topology.machine.cuda_advice;
    sheet.add("none", "no CUDA device: " + topology.machine.cuda_error + (advice.empty() ? "" : "; " + advice));
  }
  for (std::size_t i = 0; i < topology.gpus.size(); ++i) describe_gpu(topology, i, sheet);
  if (topology.gpus.size() > 1) describe_links(topology, sheet);
  return sheet.text();
}

}  // namespace aisp::machine
