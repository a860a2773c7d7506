package host

func moreSpaces() map[string]func(int) (*Space, error) {
	return map[string]func(int) (*Space, error){"strict": reserveStrict}
}
