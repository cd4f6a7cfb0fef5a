// SPDX-License-Identifier: Apache-2.0
#include "report/public_run.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "evidence/json.hpp"

namespace aisp::report {
namespace {

constexpr std::string_view removed = "(removed)";
// Shorter words would be found in half of all sentences.
constexpr std::size_t shortest_word = 3;

bool is_word_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}
bool ends_path(char c) { return std::string_view{" \t\n\"'`<>()[]{},;|"}.find(c) != std::string_view::npos; }
// "GB/s" and "a / b" hold no path; "in /home/me", "--dir=/x" and "file:///x" do.
bool begins_path(const std::string& text, std::size_t at) {
  if (text[at] != '/' || at + 1 >= text.size() || ends_path(text[at + 1])) return false;
  return at == 0 || ends_path(text[at - 1]) || text[at - 1] == '=' || text[at - 1] == ':' || text[at - 1] == '~';
}

std::string without_paths(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (!begins_path(text, i)) {
      result += text[i++];
      continue;
    }
    while (i < text.size() && !ends_path(text[i]) && !(text[i] == ':' && (i + 1 == text.size() || text[i + 1] != '/'))) ++i;
    result += removed;
  }
  return result;
}

bool is_letter_or_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0; }

std::string without_word(const std::string& text, const std::string& word, bool (*is_letter)(char) = is_word_letter,
                         std::string_view instead = removed) {
  std::string result;
  std::size_t done = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    const std::size_t end = at + word.size();
    const bool alone = (at == 0 || !is_letter(text[at - 1])) && (end == text.size() || !is_letter(text[end]));
    if (!alone || at < done) continue;
    result.append(text, done, at - done).append(instead);
    done = end;
  }
  return result.append(text, done);
}

std::string without_uuids(const std::string& text) {
  std::string result = text;
  for (const std::string_view prefix : {"GPU-", "MIG-"})
    for (std::size_t at = result.find(prefix); at != std::string::npos; at = result.find(prefix, at + 1)) {
      std::size_t end = at + prefix.size();
      while (end < result.size() && (std::isxdigit(static_cast<unsigned char>(result[end])) || result[end] == '-')) ++end;
      if (end - at > prefix.size() + 7) result.replace(at, end - at, removed);
    }
  return result;
}

bool is_address(const std::string& text) {
  unsigned char bytes[16];
  const bool has_digit = std::any_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  return has_digit && (::inet_pton(AF_INET, text.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), bytes) == 1);
}

// Takes out addresses of IPv4, which versions of four numbers look like too, and of IPv6, with their ports.
std::string without_addresses(const std::string& text) {
  const auto may_be_in_one = [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == ':'; };
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i;
    while (end < text.size() && may_be_in_one(text[end])) ++end;
    const bool alone = (i == 0 || !is_word_letter(text[i - 1])) && (end == text.size() || !is_word_letter(text[end]));
    std::string word = text.substr(i, end - i);
    while (!word.empty() && (word.back() == '.' || (word.back() == ':' && !word.ends_with("::")))) word.pop_back();
    if (alone && (is_address(word) || is_address(word.substr(0, word.rfind(':'))))) {
      result += removed;
      i += word.size();
    }
    if (i < end) result.append(text, i, end - i);
    if (end < text.size()) result += text[end];
    i = end + 1;
  }
  return result;
}

// Fields that hold words of ours, which stay though a host or a user may be called like one of them.
bool is_our_word(const std::string& field) {
  constexpr auto fields = std::to_array<std::string_view>({"target",
                                                           "targets",
                                                           "cases",
                                                           "chapter",
                                                           "name",
                                                           "best",
                                                           "case",
                                                           "device",
                                                           "bound",
                                                           "role",
                                                           "status",
                                                           "math",
                                                           "verdict",
                                                           "bytes_of",
                                                           "start",
                                                           "cache",
                                                           "judged_by",
                                                           "timing_mode",
                                                           "unit",
                                                           "origin",
                                                           "better",
                                                           "started_utc",
                                                           "source_digest",
                                                           "stopped_because",
                                                           "ceiling_from",
                                                           "memory_from",
                                                           "flops_from",
                                                           "aisp_version",
                                                           "commit",
                                                           "driver_version",
                                                           "library_versions"});
  return std::ranges::find(fields, field) != fields.end();
}

// Returns the users whose homes a text names: /home/ada, /Users/ada.
std::vector<std::string> users_of_homes(const std::string& text) {
  std::vector<std::string> users;
  for (const std::string_view homes : {"/home/", "/Users/"})
    for (std::size_t at = text.find(homes); at != std::string::npos; at = text.find(homes, at + 1)) {
      const std::size_t begin = at + homes.size();
      std::size_t end = begin;
      while (end < text.size() && (is_word_letter(text[end]) || text[end] == '.')) ++end;
      users.push_back(text.substr(begin, end - begin));
    }
  return users;
}

void redact_all(nlohmann::json& json, const Redactor& redact) {
  if (json.is_string()) json = redact(json.get<std::string>());
  if (json.is_array())
    for (auto& child : json) redact_all(child, redact);
  if (json.is_object())
    for (auto& [field, child] : json.items())
      if (!is_our_word(field)) redact_all(child, redact);
}

template <class T>
T redacted(const T& value, const Redactor& redact) {
  nlohmann::json json = value;
  redact_all(json, redact);
  return json.get<T>();
}

evidence::Manifest redacted(const evidence::Manifest& manifest, const Redactor& redact) {
  evidence::Manifest m = manifest;
  m.hostname.clear();
  m.branch.clear();
  m.command_line.clear();
  m.environment.clear();
  m.processes.clear();
  for (evidence::ManifestGpu& gpu : m.gpus) gpu.uuid = gpu.pci = gpu.host = "";
  // The name of a library's file says its version, its folder says where somebody lives.
  for (auto& [name, file] : m.libraries) file = file.substr(file.rfind('/') + 1);
  for (evidence::Manifest& machine : m.machines) machine = redacted(machine, redact);
  return redacted<evidence::Manifest>(m, redact);
}

// Names of machines are names of hosts.
void number_machines(evidence::RunRecord& run) {
  std::map<std::string, std::string> names;
  for (evidence::Manifest& m : run.manifest.machines) {
    std::string number = fmt::format("machine {}", names.size() + 1);
    names.emplace(m.machine, number);
    m.machine = std::move(number);
  }
  for (evidence::PairResult& pair : run.pairs)
    if (const auto found = names.find(pair.machine); found != names.end()) pair.machine = found->second;
}

void add_names(const evidence::Manifest& m, std::vector<std::string>& words) {
  std::vector<std::string> hosts = m.processes;
  hosts.push_back(m.hostname);
  for (const std::string& host : hosts) {
    words.push_back(host);
    words.push_back(host.substr(0, host.find('.')));
  }
  for (const evidence::ManifestGpu& gpu : m.gpus) {
    words.push_back(gpu.uuid);
    words.push_back(gpu.pci);
  }
}

}  // namespace

Redactor::Redactor(std::vector<std::string> words, std::string run_id) : words_{std::move(words)}, run_id_{std::move(run_id)} {
  std::erase_if(words_, [](const std::string& word) { return word.size() < shortest_word; });
  // A host name before the label that it begins with.
  std::stable_sort(words_.begin(), words_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::string Redactor::operator()(const std::string& text) const {
  std::string result = without_addresses(without_uuids(without_paths(text)));
  if (!run_id_.empty()) result = without_word(result, run_id_, is_word_letter, name(run_id_));
  for (const std::string& word : words_) result = without_word(result, word);
  return result;
}

std::string Redactor::name(const std::string& run_id) const {
  std::string result = without_addresses(run_id);
  for (const std::string& word : words_) result = without_word(result, word, is_letter_or_digit);
  return result;
}

Redactor redactor_for(const evidence::RunRecord& run, const std::vector<std::string>& users) {
  const evidence::Manifest& m = run.manifest;
  std::vector<std::string> words = users;
  add_names(m, words);
  for (const evidence::Manifest& machine : m.machines) add_names(machine, words);
  for (std::string& user : users_of_homes(nlohmann::json(m).dump())) words.push_back(std::move(user));
  return Redactor{std::move(words), m.run_id};
}

evidence::RunRecord public_copy(const evidence::RunRecord& original, const Redactor& redact) {
  evidence::RunRecord run = original, copy;
  number_machines(run);
  copy.manifest = redacted(run.manifest, redact);
  copy.confirmation = run.confirmation;
  for (const std::string& warning : run.warnings) copy.warnings.push_back(redact(warning));
  for (const evidence::PairResult& pair : run.pairs) {
    copy.pairs.push_back(redacted<evidence::PairResult>(pair, redact));
    copy.pairs.back().gpus.clear();
    copy.pairs.back().log.clear();
    for (evidence::VariantResult& variant : copy.pairs.back().variants) variant.nsys_report.reset();
  }
  return copy;
}

std::vector<evidence::Series> public_copy(std::vector<evidence::Series> history, const Redactor& redact) {
  const auto make_public = [&](evidence::SeriesStep& step) {
    step.run_id = redact.name(step.run_id);
    // The copies of manifests have neither, so that nothing would be said of a difference.
    std::erase_if(step.causes, [](const evidence::ManifestDifference& cause) {
      return cause.field.starts_with("environment") || cause.field.starts_with("hostname") || cause.field.starts_with("branch") ||
             cause.field.starts_with("gpus");
    });
    for (evidence::ManifestDifference& cause : step.causes) {
      cause.before = redact(cause.before);
      cause.after = redact(cause.after);
    }
  };
  for (evidence::Series& series : history) {
    series.machine.clear();
    for (std::string& run_id : series.run_ids) run_id = redact.name(run_id);
    for (evidence::SeriesStep& step : series.steps) make_public(step);
    if (series.recent) make_public(*series.recent);
  }
  return history;
}

}  // namespace aisp::report
