"""The texts of the golden files."""

SENTENCES = (
    "a cat sits on the mat.",
    "Dogs!",
    "the small bird sang; nobody listened to it",
    "",
    "a happy man plays a guitar",
)

# texts that tokenizers have got wrong before
TEXTS = (
    "A man is playing a guitar.",
    "",
    "Café naïve São Paulo — “quoted” 'single' it's don't",
    "中文 and English 混合 text",
    "zero\u200bwidth\u00a0space\ttab\nnewline \x00\x07\x7f control",
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis " + "x" * 120,
    "$1,000.50 @user #tag https://example.com/a?b=c&d=e ... !!! ???",
    "emoji 😀👍🏽 flags 🇩🇪 and ﬁ ligatures ½ ①",
    "[CLS] [SEP] [MASK] [PAD] in the text",
    "word " * 400,
)
