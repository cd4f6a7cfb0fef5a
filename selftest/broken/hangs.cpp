// SPDX-License-Identifier: Apache-2.0
// They never end.
#include "doubling.hpp"

#include <csignal>
#include <cstdio>
#include <string>

namespace aisp::ch91 {
namespace {

using namespace selftest;

class Hangs : public Doubling {
 public:
  using Doubling::Doubling;
  void in_verify(Launch&) { hang(); }
  void ignoring_signals(Launch&) {
    for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) std::signal(number, SIG_IGN);
    hang();
  }
  void printing(Launch&) {
    const std::string line(1023, 'x');
    for (;;) std::puts(line.c_str());
  }
};

class HangsAtOnce final : public Doubling {
 public:
  explicit HangsAtOnce(Setup& setup) : Doubling{setup} { hang(); }
};

constexpr Expected hangs_in_verify = hangs("verify/stage_limit", 1);

}  // namespace

extern constinit const selftest::Case hang_in_constructor =
    pair_of<&Doubling::doubled, HangsAtOnce>({.does = "hangs while it is set up", .must = hangs("setup/stage_limit", 1)});
extern constinit const selftest::Case hang_in_verify =
    pair_of<&Hangs::in_verify>({.does = "hangs the first time a variant runs", .must = hangs_in_verify});
extern constinit const selftest::Case hang_ignoring_signals =
    pair_of<&Hangs::ignoring_signals>({.does = "hangs and ignores every polite signal", .must = hangs_in_verify});
extern constinit const selftest::Case endless_output =
    pair_of<&Hangs::printing>({.does = "prints without end", .must = hangs_in_verify});

}  // namespace aisp::ch91
