// SPDX-License-Identifier: Apache-2.0
#include "compile/headers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/text.hpp"
#include "pair/code.hpp"

namespace aisp::compile {
namespace {

constexpr std::string_view standard = "standard.cuh";
// Headers of others, of which standard.cuh has what is used.
constexpr std::array<std::string_view, 9> substituted{"cstddef",    "cstdint",        "type_traits",
                                                      "cuda.h",     "cuda_bf16.h",    "cuda_fp16.h",
                                                      "cuda_fp8.h", "cuda_runtime.h", "cuda_runtime_api.h"};

struct FoundHeader {
  std::string path;  // where it lies, for what it includes beside itself
  std::string text;
};

// The name in "#include <name>" or "#include "name""; empty for other lines.
std::string_view included(std::string_view line) {
  const auto skip_blanks = [&] {
    const std::size_t at = line.find_first_not_of(" \t");
    line.remove_prefix(std::min(at, line.size()));
  };
  skip_blanks();
  if (!line.starts_with('#')) return {};
  line.remove_prefix(1);
  skip_blanks();
  if (!line.starts_with("include")) return {};
  line.remove_prefix(std::string_view{"include"}.size());
  skip_blanks();
  if (!line.starts_with('<') && !line.starts_with('"')) return {};
  const std::size_t end = line.find(line.front() == '<' ? '>' : '"', 1);
  return end == std::string_view::npos ? std::string_view{} : line.substr(1, end - 1);
}

std::optional<FoundHeader> find_device_header(std::string_view name) {
  for (const Header& header : device_headers())
    if (header.name == name) return FoundHeader{std::string{name}, std::string{header.text}};
  return std::nullopt;
}

// A file that is shown with some pair, by its path or the end of it.
std::optional<FoundHeader> find_shown(std::string_view path, bool only_its_end) {
  for (const pair::Code& code : pair::linked_code())
    for (const pair::SourceFile& file : code.files)
      if (file.path == path || (only_its_end && file.path.ends_with("/" + std::string{path})))
        return FoundHeader{std::string{file.path}, file.content().text};
  return std::nullopt;
}

std::optional<FoundHeader> find(std::string_view name, std::string_view includer, const KernelSource& source) {
  for (const NamedText& own : source.headers)
    if (own.name == name) return FoundHeader{own.name, own.text};
  if (std::ranges::find(substituted, name) != substituted.end())
    return FoundHeader{std::string{name}, fmt::format("#include <{}>\n", standard)};
  if (std::optional<FoundHeader> found = find_device_header(name)) return found;
  if (const std::size_t slash = includer.rfind('/'); slash != std::string_view::npos)
    if (std::optional<FoundHeader> found = find_shown(fmt::format("{}/{}", includer.substr(0, slash), name), false)) return found;
  if (std::optional<FoundHeader> found = find_shown(fmt::format("shared/{}", name), true)) return found;
  return name.find('/') == std::string_view::npos ? std::nullopt : find_shown(name, true);
}

}  // namespace

std::vector<NamedText> reached_headers(const KernelSource& source) {
  std::map<std::string, FoundHeader> reached;
  std::vector<FoundHeader> waiting{{.path = {}, .text = source.text}};
  while (!waiting.empty()) {
    const FoundHeader includer = std::move(waiting.back());
    waiting.pop_back();
    for (const std::string_view line : base::split(includer.text, '\n')) {
      const std::string_view name = included(line);
      if (name.empty()) continue;
      std::optional<FoundHeader> found = find(name, includer.path, source);
      if (!found) continue;
      const auto [entry, is_new] = reached.try_emplace(std::string{name}, *found);
      if (is_new) waiting.push_back(std::move(*found));
      else if (entry->second.path != found->path)
        throw std::logic_error{fmt::format("{}: {} and {} are both included as \"{}\", which NVRTC cannot tell apart",
                                           source.name, entry->second.path, found->path, name)};
    }
  }
  std::vector<NamedText> headers;
  for (auto& [name, found] : reached) headers.push_back({name, std::move(found.text)});
  return headers;
}

}  // namespace aisp::compile
