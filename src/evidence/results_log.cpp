// SPDX-License-Identifier: Apache-2.0
#include "evidence/results_log.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_fields.hpp"
#include "base/system/files.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "evidence/names.hpp"

namespace aisp::evidence {

AISP_DESCRIBE(LogHeader, run_id, started_utc, command)

namespace {

using base::Error;
using base::Exit;

constexpr const char* log_kind = "aisp results log";
constexpr std::size_t longest_header_bytes = 4096;

LogHeader read_header(const nlohmann::json& line, const std::string& place) {
  if (line.value("kind", nlohmann::json{}) != log_kind)
    throw Error{Exit::usage, fmt::format("{}: this is not the first line of a results log; the file was changed by hand", place)};
  demand_schema_version(line, place);
  LogHeader header;
  base::JsonReader reader{line, place};
  describe(header, reader);
  return header;
}

nlohmann::json header_json(const LogHeader& header) {
  nlohmann::json json = base::json_of(header);
  json["schema_version"] = schema_version;
  json["kind"] = log_kind;
  return json;
}

void check_names(const PairResult& pair, const std::string& place) {
  for (const VariantResult& variant : pair.variants)
    if (!is_plain(variant.name))
      throw Error{Exit::usage, fmt::format("{}: '{}' is no name of a variant; the file was changed by hand", place,
                                           base::one_line(variant.name, 80))};
  if (!pair.sweep_case.empty() && !is_plain(pair.sweep_case))
    throw Error{Exit::usage, fmt::format("{}: '{}' is no case of a sweep; the file was changed by hand", place,
                                         base::one_line(pair.sweep_case, 80))};
  if (is_plain(pair.chapter) && is_plain(pair.name) && pair.target == pair.chapter + ":" + pair.name) return;
  throw Error{Exit::usage,
              fmt::format("{}: '{}' is not the target of chapter '{}' and name '{}'; the file was changed by hand", place,
                          base::one_line(pair.target, 80), base::one_line(pair.chapter, 80), base::one_line(pair.name, 80))};
}

// Whether two times can have such a ratio.
bool can_be_measured(const Speedup& speedup) {
  constexpr double largest = 1e12;  // a quarter of an hour over a nanosecond
  const auto fits = [](double ratio) { return !std::isfinite(ratio) || (ratio >= 0 && ratio <= largest); };  // null is not finite
  return fits(speedup.value) && fits(speedup.low) && fits(speedup.high);
}

void check_speedups(const PairResult& pair, const std::string& place) {
  for (const VariantResult& variant : pair.variants)
    if (variant.speedup && !can_be_measured(*variant.speedup))
      throw Error{Exit::usage,
                  fmt::format("{}: {} has a speedup of {:.4g} in [{:.4g}, {:.4g}]; the file was changed by hand", place,
                              variant.name, variant.speedup->value, variant.speedup->low, variant.speedup->high)};
}

void keep(PairResult result, std::vector<PairResult>& results) {
  for (PairResult& earlier : results) {
    if (earlier.target != result.target || earlier.sweep_case != result.sweep_case) continue;
    earlier = std::move(result);
    return;
  }
  results.push_back(std::move(result));
}

}  // namespace

std::string header_line(const LogHeader& header) { return json_text(header_json(header)); }

bool is_unfinished_header(std::string_view text, const std::string& run_id) {
  // The known part of the header: its time of day comes last.
  const std::string whole = header_line({.run_id = run_id});
  const std::string_view known = std::string_view{whole}.substr(0, whole.rfind('"'));
  return text.find('\n') == std::string_view::npos && (known.starts_with(text) || text.starts_with(known));
}

std::optional<LogHeader> try_read_log_header(const std::filesystem::path& path) {
  const std::string text = base::try_read_beginning(path, longest_header_bytes).value_or("");
  const std::size_t end = text.find('\n');
  if (end == std::string::npos) return std::nullopt;
  try {
    const nlohmann::json line = parse_json(std::string_view{text}.substr(0, end), path.string());
    if (line.is_object()) return read_header(line, path.string());
  } catch (const std::exception&) {
    // The reader of the log itself reports what is wrong with it.
  }
  return std::nullopt;
}

std::string to_line(const PairResult& result) { return json_text(result); }

ResultsLog parse_results_log(std::string_view text, const std::string& source) {
  ResultsLog log;
  std::size_t number = 0;
  for (std::size_t start = 0; start < text.size();) {
    const std::size_t end = text.find('\n', start);
    const bool cut = end == std::string_view::npos;
    const std::string_view line = text.substr(start, cut ? std::string_view::npos : end - start);
    start = cut ? text.size() : end + 1;
    ++number;
    const std::string place = fmt::format("{}:{}", source, number);
    if (line.empty()) continue;
    try {
      const nlohmann::json value = parse_json(line, place);
      if (!value.is_object()) throw Error{Exit::usage, fmt::format("{}: expected an object, found {}", place, value.type_name())};
      if (number == 1) {
        static_cast<LogHeader&>(log) = read_header(value, place);
        continue;
      }
      demand_schema_version(value, place);
      PairResult result = value.get<PairResult>();
      check_names(result, place);
      check_speedups(result, place);
      keep(std::move(result), log.results);
    } catch (const std::exception& error) {
      if (cut && number > 1) {
        log.warnings.push_back(fmt::format("{}: the last line is incomplete and was left out", place));
        continue;
      }
      const std::string what = error.what();
      throw Error{Exit::usage, what.starts_with(place) ? what : fmt::format("{}: {}", place, what)};
    }
  }
  if (number == 0) throw Error{Exit::usage, fmt::format("{}: the file is empty", source)};
  return log;
}

ResultsLog read_results_log(const std::filesystem::path& path) { return parse_results_log(base::read_file(path), path.string()); }

}  // namespace aisp::evidence
