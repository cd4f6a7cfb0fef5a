// SPDX-License-Identifier: Apache-2.0
#include <aisp/opened.hpp>

#include <gtest/gtest.h>
#include <aisp/pair.hpp>

#include <string>
#include <vector>

#include "pair/session.hpp"

namespace aisp::pair {
namespace {

std::vector<std::string> made;

struct Handle {
  static constexpr Library library = Library::cufft;
  explicit Handle(std::string its_name) : name{std::move(its_name)} {
    if (name.empty()) throw Unsupported{"it cannot do that"};
    made.push_back(name);
  }
  std::string name;
};
struct Plan {
  static constexpr Library library = Library::cufft;
  explicit Plan(const Handle& of) : handle{of} { made.push_back("plan of " + of.name); }
  const Handle& handle;
};

class Users final : public Workload {
 public:
  explicit Users(Setup& setup)
      : out_{setup.output<float>(1)},
        handle_{setup, std::string{"handle"}},
        plan_{setup, handle_},
        impossible_{setup, std::string{}} {}
  Cost cost() const override { return {}; }
  void nothing(Launch&) {}
  void by_plan(Launch&) { made.push_back("run with " + plan_->handle.name); }
  void by_impossible(Launch&) { made.push_back(impossible_->name); }

 private:
  Output<float> out_;
  Opened<Handle> handle_;
  Opened<Plan> plan_;
  Opened<Handle> impossible_;
};

constexpr Pair pair_of_users{
    .teaches = "test",
    .make = make<Users>,
    .baseline = {.name = "no_library", .run = call<&Users::nothing>},
    .optimized = variants({{.name = "by_plan", .run = call<&Users::by_plan>, .needs = {.libraries = {Library::cufft}}},
                           {.name = "impossible", .run = call<&Users::by_impossible>, .needs = {.libraries = {Library::cufft}}},
                           {.name = "undeclared", .run = call<&Users::by_plan>}}),
    .device = Device::host};

class OpenedByTheHarness : public testing::Test {
 protected:
  OpenedByTheHarness() { made.clear(); }
  Session session_{pair_of_users, {}};
};

TEST_F(OpenedByTheHarness, BeforeTheFirstVariantThatNeedsTheLibrary) {
  session_.prepare(pair_of_users.baseline);
  EXPECT_TRUE(made.empty()) << "nobody needs it yet";
  session_.prepare(pair_of_users.optimized[0]);
  session_.prepare(pair_of_users.optimized[0]);
  EXPECT_EQ(made, (std::vector<std::string>{"handle", "plan of handle"})) << "in the order of the members, and once";
  session_.submit(pair_of_users.optimized[0]);
  EXPECT_EQ(made.back(), "run with handle");
}

TEST_F(OpenedByTheHarness, WhatCannotBeMadeIsUnsupportedForThoseThatUseIt) {
  EXPECT_NO_THROW(session_.prepare(pair_of_users.optimized[1])) << "the others must not suffer";
  EXPECT_NO_THROW(session_.submit(pair_of_users.optimized[0]));
  EXPECT_THROW(session_.submit(pair_of_users.optimized[1]), Unsupported);
}

TEST_F(OpenedByTheHarness, AVariantThatForgetsItsNeedsIsTold) {
  session_.prepare(pair_of_users.optimized[2]);
  EXPECT_THROW(session_.submit(pair_of_users.optimized[2]), std::logic_error);
}

}  // namespace
}  // namespace aisp::pair
