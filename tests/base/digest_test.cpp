// SPDX-License-Identifier: Apache-2.0
#include "base/digest.hpp"

#include <gtest/gtest.h>

#include <string>

namespace aisp::base {
namespace {

TEST(Digest, AgreesWithTheStandardsExamples) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Digest, DoesNotDependOnHowTheMessageIsCut) {
  std::string message;
  for (int i = 0; i < 200; ++i) message += static_cast<char>(i);
  for (std::size_t cut = 0; cut <= message.size(); ++cut) {
    Sha256 digest;
    digest.update(std::string_view{message}.substr(0, cut)).update(std::string_view{message}.substr(cut));
    ASSERT_EQ(digest.hex(), sha256_hex(message)) << "cut at " << cut;
  }
}

}  // namespace
}  // namespace aisp::base
