// SPDX-License-Identifier: Apache-2.0
#include "run/wire/protocol.hpp"

#include <nlohmann/json.hpp>

#include "base/json_fields.hpp"
#include "evidence/json.hpp"

namespace aisp::run {

static constexpr base::Words<2> words_of(Turn) { return {{"work", "quiet"}}; }

namespace {

evidence::Stage stage_of(const nlohmann::json& word) {
  evidence::Stage stage{};
  base::JsonReader::read(word, stage, "stage");
  return stage;
}

Message parse_object(const nlohmann::json& json) {
  if (const auto stage = json.find("stage"); stage != json.end())
    return StageBegun{stage_of(*stage), json.at("limit_s").get<double>()};
  if (const auto done = json.find("stage_done"); done != json.end())
    return StageDone{stage_of(*done), json.at("elapsed_s").get<double>()};
  if (const auto progress = json.find("progress"); progress != json.end())
    return RoundProgress{.round = base::json_integer<int>(progress->at("round"), "round"),
                         .of = base::json_integer<int>(progress->at("of"), "of"),
                         .interval_percent = progress->value("interval_percent", 0.0),
                         .wanted_percent = progress->value("wanted_percent", 0.0),
                         .spent_s = progress->value("spent_s", 0.0),
                         .budget_s = progress->value("budget_s", 0.0)};
  if (const auto wanted = json.find("turn_wanted"); wanted != json.end()) {
    Turn turn{};
    base::JsonReader::read(*wanted, turn, "turn_wanted");
    return TurnWanted{turn};
  }
  if (const auto wanted = json.find("baseline_wanted"); wanted != json.end())
    return BaselineWanted{.runs = base::json_integer<int>(wanted->at("runs"), "runs"),
                          .limit_s = wanted->at("limit_s").get<double>(),
                          .seed = base::json_integer<std::uint64_t>(wanted->at("seed"), "seed")};
  if (const auto times = json.find("baseline_ms"); times != json.end()) return BaselineTimes{times->get<std::vector<double>>()};
  if (const auto crash = json.find("crash"); crash != json.end()) return Crash{crash->get<std::vector<std::string>>()};
  if (const auto result = json.find("result"); result != json.end()) return Report{result->get<evidence::PairResult>(), true};
  return Report{json.at("partial").get<evidence::PairResult>(), false};
}

}  // namespace

std::string_view to_string(Turn turn) { return base::word_for(turn); }

std::string printable_excerpt(std::string_view text, std::size_t limit) {
  std::string result{text.substr(0, limit)};
  for (char& c : result)
    if (c < ' ' || c > '~') c = '?';
  if (text.size() > limit) result += "...";
  return result;
}

std::optional<Message> parse_message(std::string_view line) {
  if (line.empty()) return std::nullopt;
  try {
    const nlohmann::json json = evidence::parse_json(line, "the result pipe");
    if (json.is_object()) return parse_object(json);
  } catch (const std::exception&) {
    // Reported as unreadable below: the pair may have written to the pipe, which only causes a warning.
  }
  return Unreadable{printable_excerpt(line)};
}

void LineSplitter::feed(std::string_view bytes, const std::function<void(std::string_view line)>& on_line) {
  while (!bytes.empty()) {
    const std::size_t end = bytes.find('\n');
    const std::string_view piece = bytes.substr(0, end);
    if (!discarding_ && pending_.size() + piece.size() > cap_bytes_) {
      discarding_ = true;
      ++overlong_lines_;
      pending_ = {};
    }
    if (!discarding_) pending_ += piece;
    if (end == std::string_view::npos) return;
    if (!discarding_) on_line(pending_);
    pending_.clear();
    discarding_ = false;
    bytes.remove_prefix(end + 1);
  }
}

}  // namespace aisp::run
