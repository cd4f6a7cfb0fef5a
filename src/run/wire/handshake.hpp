// SPDX-License-Identifier: Apache-2.0
// The handshake between two builds of aisp before both measure pairs side by side: `run --against` starts children of the other.
#pragma once
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace aisp::run {

// The version of requests, of children's answers and of what the times in them mean. Raised with every change after which an
// older executable would measure something else than it is asked for, or be misunderstood.
inline constexpr int protocol_version = 1;

// Another build of aisp.
struct Counterpart {
  std::filesystem::path executable;
  std::string version, commit;
  std::vector<std::string> targets;  // its registry
};

// Throws base::Error (usage), in one line, if the executable is no aisp or speaks another protocol.
Counterpart shake_hands(const std::filesystem::path& executable);
// Parses `executable`'s answer `text`.
Counterpart parse_handshake(std::string_view text, const std::filesystem::path& executable);

// Runs the hidden command `aisp __handshake FD`: answers with this executable's own description.
int handshake_main(int descriptor);

}  // namespace aisp::run
