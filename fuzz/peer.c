/*
 * fuzz/peer.c: what a peer can say to the port for peers, in frames (fuzz/stage.h). The first byte: 0, it is a stranger; 1, it has
 * proven the key on a control connection; 2, on one for bulk.
 */
#include "stage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The node's nonce is known here, so its reply is. */
static void greet(enum greet_kind kind)
{
	_cleanup_(buf_fini) struct buf hello = { 0 }, reply = { 0 }, body = { 0 };
	struct msg_hello m = { .kind = (uint8_t)kind,
			       .major_min = FRAME_MAJOR,
			       .major_max = FRAME_MAJOR,
			       .cluster = view_str("c"),
			       .generation = 1,
			       .node = view_str("n1"),
			       .incarnation = 1,
			       .nonce = { { 1 } } };
	struct msg_hello_reply answer = { .major = FRAME_MAJOR,
					  .cluster = view_str("c"),
					  .generation = 1,
					  .node = view_str("n0"),
					  .incarnation = 1 };
	struct msg_prove prove;

	memset(answer.nonce.b, STAGE_NONCE, sizeof(answer.nonce.b));
	CHECK(!msg_hello_encode(&m, &hello) && !msg_hello_reply_encode(&answer, &reply));
	const struct proof_words words = { digest_of(hello.ptr, hello.len), digest_of(reply.ptr, reply.len) };
	CHECK(!proof_make(view_str(STAGE_KEY), PROOF_DIALS, &words, &prove.proof));
	CHECK(!msg_prove_encode(&prove, &body));
	stage_frame(MSG_HELLO, 0, 0, view_buf(&hello));
	stage_frame(MSG_PROVE, 0, 0, view_buf(&body));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct view input = view_of(data, size);
	unsigned kind = size ? *view_take(&input, 1).ptr % 3 : 0;

	log_setup(LOG_ERROR, NULL, NULL);
	stage_open(false);
	uint64_t strangers = count_value(COUNT_PEER_PROOF);
	if (kind)
		greet((enum greet_kind)kind);
	stage_frames(input);
	stage_play();
	CHECK(!kind || count_value(COUNT_PEER_PROOF) == strangers); /* the proof above is a right one */
	return 0;
}
