// SPDX-License-Identifier: Apache-2.0
// They look for what tells timed runs from others, and throw when they find it.
#include "calls.hpp"
#include "doubling.hpp"

#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <stdexcept>
#include <string>

namespace aisp::ch87 {
namespace {

using namespace selftest;

class Spies final : public Spying<Doubling> {
 public:
  using Spying::Spying;
  void on_its_thread(Launch& launch) {
    std::array<char, 32> name{};
    ::pthread_getname_np(::pthread_self(), name.data(), name.size());
    look(launch, name.data() + std::string{" "} + std::to_string(::gettid()));
  }
  void on_other_threads(Launch& launch) {
    const std::filesystem::directory_iterator tasks{"/proc/self/task"};
    look(launch, std::to_string(std::distance(begin(tasks), end(tasks))) + " threads");
  }
  void on_libraries(Launch& launch) {
    std::ifstream maps{"/proc/self/maps"};
    std::set<std::string> found;
    for (std::string line; std::getline(maps, line);)
      if (const std::size_t slash = line.find('/'); slash != std::string::npos && line.find(".so") != std::string::npos)
        found.insert(line.substr(slash));
    std::string all;
    for (const std::string& library : found) all += library + '\n';
    look(launch, all);
  }
  // Here the first run would show what another process had left.
  void on_its_home(Launch& launch) {
    for (const char* variable : {"HOME", "TMPDIR"}) {
      const char* folder = std::getenv(variable);
      if (folder == nullptr || !std::filesystem::is_empty(folder))
        throw std::runtime_error{std::string{variable} + " is no empty folder of this process"};
    }
    doubled(launch);
  }
};

}  // namespace

extern constinit const selftest::Case spy_on_environment =
    pair_of<&Spies::on_the_environment>({.does = "compares the environment from run to run", .must = sees_nothing});
extern constinit const selftest::Case spy_on_thread =
    pair_of<&Spies::on_its_thread>({.does = "compares its thread and its name from run to run", .must = sees_nothing});
extern constinit const selftest::Case spy_on_threads =
    pair_of<&Spies::on_other_threads>({.does = "counts the threads of its process from run to run", .must = sees_nothing});
extern constinit const selftest::Case spy_on_libraries =
    pair_of<&Spies::on_libraries>({.does = "compares the loaded libraries from run to run", .must = sees_nothing});
extern constinit const selftest::Case spy_on_home = pair_of<&Spies::on_its_home>(
    {.does = "looks in its home and among temporary files for what an earlier process left", .must = sees_nothing});

}  // namespace aisp::ch87
