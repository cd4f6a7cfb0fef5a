// SPDX-License-Identifier: Apache-2.0
#include "base/system/process.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

namespace aisp::base {
namespace {

std::string slurp(const std::filesystem::path& file) {
  std::ifstream stream{file, std::ios::binary};
  // Reading fails if the process ends meanwhile; an iterator would throw.
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

struct ProcessStat {
  std::string name;
  char state = 'Z';
  pid_t group = 0;
};

// "PID (name) S PPID PGRP ..."; the name may hold blanks and parentheses, so the last ')' ends it.
ProcessStat read_stat(const std::filesystem::path& process) {
  const std::string text = slurp(process / "stat");
  const std::size_t open = text.find('('), close = text.rfind(')');
  if (open == std::string::npos || close == std::string::npos) return {};
  ProcessStat stat{.name = text.substr(open + 1, close - open - 1)};
  pid_t parent = 0;
  std::istringstream{text.substr(close + 1)} >> stat.state >> parent >> stat.group;
  return stat;
}

bool has_mark(const std::filesystem::path& process, const std::string& mark) {
  const std::string environment = '\0' + slurp(process / "environ") + '\0';
  return environment.find('\0' + mark + '\0') != std::string::npos;
}

}  // namespace

std::vector<Leftover> find_leftovers(pid_t group, const std::string& mark) {
  std::vector<Leftover> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator{"/proc", ignored}) {
    const pid_t pid = static_cast<pid_t>(std::atol(entry.path().filename().c_str()));
    if (pid <= 1 || pid == ::getpid()) continue;
    const ProcessStat stat = read_stat(entry.path());
    if (stat.state == 'Z' || stat.state == 'X') continue;
    if (stat.group == group || has_mark(entry.path(), mark)) found.push_back({pid, stat.name, stat.group == group});
  }
  return found;
}

std::vector<Leftover> kill_leftovers(pid_t group, const std::string& mark) {
  const std::vector<Leftover> first = find_leftovers(group, mark);
  std::vector<Leftover> now = first;
  for (int attempt = 0; !now.empty() && attempt < 50; ++attempt) {
    for (const Leftover& leftover : now) ::kill(leftover.pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds{2});
    now = find_leftovers(group, mark);
  }
  return first;
}

}  // namespace aisp::base
