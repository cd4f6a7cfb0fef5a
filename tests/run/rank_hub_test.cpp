// SPDX-License-Identifier: Apache-2.0
#include "run/parent/rank_hub.hpp"

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <aisp/check.hpp>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/system/clock.hpp"

namespace aisp::run {
namespace {

using pair::RankGroup;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

RankGroup::Place place_at(const RankHub& hub, int rank, int ranks, bool one_clock = true) {
  return {rank, ranks, hub.address(), hub.key(), one_clock};
}

// Runs `body` in a thread for each rank and returns what each had to say, or the text of its exception.
std::vector<std::string> on_ranks(const RankHub& hub, int ranks, const std::function<std::string(RankGroup&)>& body,
                                  bool one_clock = true) {
  std::vector<std::string> said(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        RankGroup group{place_at(hub, rank, ranks, one_clock)};
        said[static_cast<std::size_t>(rank)] = body(group);
      } catch (const std::exception& error) {
        said[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return said;
}

TEST(RankHub, GivesAllBytesToAll) {
  RankHub hub{3};
  const auto said = on_ranks(hub, 3, [](RankGroup& group) {
    std::string text;
    for (const std::string& each : group.gather("here", std::to_string(group.rank() * 10))) text += each + " ";
    return text + std::to_string(group.of_first("there", group.rank() + 7));
  });
  EXPECT_THAT(said, ElementsAre("0 10 20 7", "0 10 20 7", "0 10 20 7"));
}

TEST(RankHub, TellsWhoIsWhereWhenRanksGoApart) {
  RankHub hub{3};
  const auto said = on_ranks(hub, 3, [](RankGroup& group) {
    group.gather(group.rank() == 1 ? "a fork" : "the road", {});
    return std::string{"met"};
  });
  for (const std::string& each : said) EXPECT_THAT(each, AllOf(HasSubstr("apart"), HasSubstr("1 at a fork")));
}

TEST(RankHub, TellsWhyARankCannotGoOn) {
  RankHub hub{2};
  const auto said = on_ranks(hub, 2, [](RankGroup& group) {
    if (group.rank() == 0) group.gather("a run", {});
    else group.all("a check", false, "the link is down");
    return std::string{"met"};
  });
  for (const std::string& each : said) EXPECT_EQ(each, "rank 1: the link is down");
  EXPECT_EQ(hub.culprit(), 1);
}

TEST(RankHub, LetsTheOthersGoWhenOneEnds) {
  RankHub hub{2};
  std::thread parent{[&] {
    while (!hub.waits(0)) std::this_thread::sleep_for(std::chrono::milliseconds{1});
    hub.ended(1, evidence::Status::crashed, "crashed in verify");
  }};
  RankGroup group{place_at(hub, 0, 2)};
  try {
    group.gather("a run", {});
    ADD_FAILURE() << "met nobody";
  } catch (const pair::RanksApart& reason) {
    EXPECT_STREQ(reason.what(), "rank 1: crashed in verify");
  }
  parent.join();
  EXPECT_FALSE(hub.waits(0));
  EXPECT_EQ(hub.alone_for_s(0), 0) << "it was told, and needs its time to end";
  EXPECT_EQ(hub.culprit(), 1);
}

TEST(RankHub, SkipsAllWhenOneIsSkipped) {
  RankHub hub{2};
  RankGroup first{place_at(hub, 0, 2)}, second{place_at(hub, 1, 2)};
  second.leave(pair::left_skipped, "it lacks a link");
  EXPECT_THROW(first.gather("a run", {}), Unsupported);
}

TEST(RankHub, ListensToThoseWithItsKeyOnly) {
  RankHub hub{2};
  RankGroup stranger{{1, 2, hub.address(), "another key"}};
  EXPECT_THROW(stranger.gather("a run", {}), pair::RanksApart);
  base::MessageLink noise{base::connect_to(hub.address())};
  noise.send({'x', std::string(1000, 'x'), std::string(100000, '\0')});
  const auto said = on_ranks(hub, 2, [](RankGroup& group) { return std::to_string(group.any("here", group.rank() == 1)); });
  EXPECT_THAT(said, ElementsAre("1", "1"));
}

TEST(RankGroup, StartsTogether) {
  RankHub hub{2};
  std::vector<double> begun_s(2);
  on_ranks(hub, 2, [&](RankGroup& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds{30});
    group.start_together("a sample");
    begun_s[static_cast<std::size_t>(group.rank())] = base::monotonic_s();
    return std::string{};
  });
  // A busy machine delays one or the other; the rank that slept delays both.
  EXPECT_LT(std::abs(begun_s[0] - begun_s[1]), 0.02);
}

TEST(RankHub, MeetsAtAPortThatIsThereForAllHubsOfARun) {
  const base::Descriptor listener = base::listen_at("tcp:127.0.0.1:0");
  sockaddr_in bound{};
  socklen_t size = sizeof bound;
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &size), 0);
  const std::string address = "tcp:127.0.0.1:" + std::to_string(ntohs(bound.sin_port));
  for (int hub_number = 0; hub_number < 2; ++hub_number) {
    RankHub hub{2, address, listener.get()};
    const auto said = on_ranks(
        hub, 2,
        [](RankGroup& group) {
          group.start_together("a sample");
          return std::to_string(group.any("here", group.rank() == 1));
        },
        false);
    EXPECT_THAT(said, ElementsAre("1", "1"));
  }
}

TEST(HubClock, KeepsTheBestEstimateUntilClocksMayHaveDrifted) {
  pair::HubClock clock;
  // The hub's clock is 100 s ahead; messages take 10 ms there and 30 ms back.
  clock.see(1, {101.010, 101.020}, 1.050);
  EXPECT_NEAR(clock.offset_s(), 99.99, 1e-9);
  clock.see(2, {102.001, 102.001}, 2.002);  // a better one
  EXPECT_NEAR(clock.offset_s(), 100, 1e-9);
  clock.see(3, {103.004, 103.004}, 3.010);  // a worse one
  EXPECT_NEAR(clock.offset_s(), 100, 1e-9);
  clock.see(1000, {1100.014, 1100.014}, 1000.010);  // a worse one, with clocks that have drifted
  EXPECT_NEAR(clock.offset_s(), 100.009, 1e-9);
}

TEST(RankGroup, NeedsNoneWhenItIsAlone) {
  RankGroup alone;
  EXPECT_FALSE(alone.several());
  EXPECT_THAT(alone.gather("here", "x"), ElementsAre("x"));
  EXPECT_TRUE(alone.all("here", true, {}));
  EXPECT_FALSE(alone.any("here", false));
  EXPECT_EQ(alone.of_first("here", 3), 3);
}

TEST(RankPieces, AreCutAsTheyWereJoined) {
  const std::vector<std::string> pieces{"", "a", std::string(300, 'b'), ""};
  EXPECT_EQ(pair::cut_pieces(pair::joined_pieces(pieces)), pieces);
  EXPECT_EQ(pair::cut_pieces(std::string{"\xff\xff\xff\xff!"}).front(), "!");
}

}  // namespace
}  // namespace aisp::run
