#include "base/error.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/check.h"

/* Ends a text that was cut in "...", at the start of a UTF-8 character, so that half a character is never shown. */
static void mark_cut(char text[ERROR_TEXT_MAX])
{
	size_t at = ERROR_TEXT_MAX - sizeof("...");

	while (at && ((unsigned char)text[at] & 0xc0) == 0x80)
		at--;
	memcpy(text + at, "...", sizeof("..."));
}

static void format_text(char text[ERROR_TEXT_MAX], const char *format, va_list args)
{
	int n = vsnprintf(text, ERROR_TEXT_MAX, format, args);

	if (n < 0)
		text[0] = 0; /* a wide character that the locale cannot show; the code still says what happened */
	else if (n >= ERROR_TEXT_MAX)
		mark_cut(text);
}

int error_set(struct error *e, int code, const char *format, ...)
{
	CHECK(code < 0);
	if (!e)
		return code;

	char text[ERROR_TEXT_MAX]; /* apart, because an argument may be e->text itself */
	va_list args;

	va_start(args, format);
	format_text(text, format, args);
	va_end(args);
	e->code = code;
	memcpy(e->text, text, sizeof(text));
	return code;
}

int error_prefix(struct error *e, const char *format, ...)
{
	if (!e)
		return -EIO;

	char prefix[ERROR_TEXT_MAX], text[ERROR_TEXT_MAX];
	va_list args;

	va_start(args, format);
	format_text(prefix, format, args);
	va_end(args);

	int n = snprintf(text, sizeof(text), e->text[0] ? "%s: %s" : "%s%s", prefix, e->text);
	if (n >= ERROR_TEXT_MAX)
		mark_cut(text);
	memcpy(e->text, text, sizeof(text));
	return e->code ? e->code : -EIO;
}

/* The positive number, or 0 for INT_MIN, which has none. */
static int positive(int code)
{
	if (code == INT_MIN)
		return 0;
	return code < 0 ? -code : code;
}

const char *error_name(int code)
{
	if (!code)
		return "OK";

	switch (positive(code)) {
#define X(name, number, text) \
	case number:          \
		return "FOREBAY_" #name;
		ERROR_TABLE(X)
#undef X
	case 0:
		return "E?";
	}
	const char *name = strerrorname_np(positive(code));
	return name ? name : "E?";
}

const char *error_meaning(int code)
{
	if (!code)
		return "no error";

	switch (positive(code)) {
#define X(name, number, text) \
	case number:          \
		return text;
		ERROR_TABLE(X)
#undef X
	case 0:
		return "unknown error";
	}
	const char *text = strerrordesc_np(positive(code));
	return text ? text : "unknown error";
}
