/*
 * fuzz/door.c: what a client can say to the native door, in frames (fuzz/stage.h). The first byte: 1, HELLO was said already.
 */
#include "stage.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const struct msg_hello hello = { .major_min = FRAME_MAJOR, .major_max = FRAME_MAJOR };
	_cleanup_(buf_fini) struct buf body = { 0 };
	struct view input = view_of(data, size);

	log_setup(LOG_ERROR, NULL, NULL);
	stage_open(true);
	CHECK(!msg_hello_encode(&hello, &body));
	if (size && (*view_take(&input, 1).ptr & 1))
		stage_frame(MSG_HELLO, 0, 0, view_buf(&body));
	stage_frames(input);
	stage_play();
	return 0;
}
