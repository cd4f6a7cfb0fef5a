// SPDX-License-Identifier: Apache-2.0
#include "run/wire/handshake.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>

#include "base/build_info.hpp"
#include "base/error.hpp"
#include "base/system/clock.hpp"
#include "base/system/files.hpp"
#include "base/system/interrupt.hpp"
#include "base/system/process.hpp"
#include "base/text.hpp"
#include "evidence/json.hpp"
#include "pair/registry.hpp"

namespace aisp::run {
namespace {

constexpr double limit_s = 30, look_s = 0.1;
constexpr std::uint64_t longest_answer_bytes = std::uint64_t{1} << 20;  // a real answer has some ten thousand
constexpr int standard_output = 1;

[[noreturn]] void refuse(const std::filesystem::path& executable, const std::string& why) {
  throw base::Error{base::Exit::usage,
                    fmt::format("--against {}: {}; name an executable of aisp that was built from a commit with this protocol",
                                executable.string(), base::one_line(why))};
}

// Waits for the child's end; returns nothing after the limit. Throws base::Error if the user interrupts; its owner ends the
// child.
std::optional<base::ExitState> end_of(base::Child& child) {
  const double deadline_s = base::monotonic_s() + limit_s;
  while (base::monotonic_s() < deadline_s) {
    if (std::optional<base::ExitState> end = child.wait(look_s)) return end;
    if (base::interrupted())
      throw base::Error{base::Exit::interrupted, "interrupted while the other executable was asked; nothing was measured"};
  }
  return std::nullopt;
}

}  // namespace

Counterpart parse_handshake(std::string_view text, const std::filesystem::path& executable) {
  Counterpart found{.executable = executable, .version = {}, .commit = {}, .targets = {}};
  int protocol = 0, schema = 0;
  try {
    const nlohmann::json answer = evidence::parse_json(text, executable.string());
    answer.at("protocol").get_to(protocol);
    answer.at("schema_version").get_to(schema);
    answer.at("version").get_to(found.version);
    answer.at("commit").get_to(found.commit);
    answer.at("targets").get_to(found.targets);
  } catch (const std::exception&) {
    refuse(executable, "its answer is not that of an aisp");
  }
  if (protocol != protocol_version)
    refuse(executable, fmt::format("it speaks version {} of the protocol between aisp and its children, this aisp {}", protocol,
                                   protocol_version));
  if (schema != evidence::schema_version)
    refuse(executable,
           fmt::format("its results have schema_version {}, those of this aisp {}", schema, evidence::schema_version));
  return found;
}

Counterpart shake_hands(const std::filesystem::path& executable) {
  const base::ScratchDirectory scratch;
  const std::filesystem::path answer = scratch.path() / "answer.json";
  std::optional<base::ExitState> end;
  try {
    const std::string descriptor = std::to_string(standard_output);
    base::Child child{{.argv = {std::filesystem::absolute(executable).string(), "__handshake", descriptor},
                       .output = answer,
                       .output_limit_bytes = longest_answer_bytes}};
    end = end_of(child);
  } catch (const base::Error& error) {
    if (error.status() == base::Exit::interrupted) throw;
    refuse(executable, fmt::format("it cannot be started ({})", error.what()));
  }
  if (!end) refuse(executable, fmt::format("it did not answer within {}", base::human_duration(limit_s)));
  const std::string text = base::read_file(answer);
  if (text.size() >= longest_answer_bytes) refuse(executable, "its answer is not that of an aisp: it goes on and on");
  if (!end->good()) refuse(executable, fmt::format("it does not know what is asked ({}: {})", end->text(), base::trim(text)));
  return parse_handshake(text, std::filesystem::absolute(executable));
}

int handshake_main(int descriptor) {
  const base::BuildInfo& build = base::build_info();
  nlohmann::json targets = nlohmann::json::array();
  for (const pair::Entry& entry : pair::registry()) targets.push_back(entry.target());
  const std::string text = evidence::json_text({{"protocol", protocol_version},
                                                {"schema_version", evidence::schema_version},
                                                {"version", build.version},
                                                {"commit", build.git_commit},
                                                {"targets", std::move(targets)}}) +
                           '\n';
  return base::write_all(descriptor, text) == 0 ? 0 : 1;
}

}  // namespace aisp::run
