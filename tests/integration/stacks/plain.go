// What Go's net/http does by itself: plain METHOD URL TIMES [NAME:VALUE]... with one client of its defaults.
// A # in a value is the number of the request. A line of JSON for each request: [status, {header: value}], or the error.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"
)

func main() {
	client := &http.Client{Timeout: 20 * time.Second}
	times, _ := strconv.Atoi(os.Args[3])
	for number := 1; number <= times; number++ {
		request, err := http.NewRequest(os.Args[1], os.Args[2], strings.NewReader("{}"))
		if err != nil {
			panic(err)
		}
		for _, line := range os.Args[4:] {
			name, value, _ := strings.Cut(line, ":")
			request.Header.Set(name, strings.ReplaceAll(value, "#", strconv.Itoa(number)))
		}
		answer, err := client.Do(request)
		if err != nil {
			said, _ := json.Marshal(err.Error())
			fmt.Println(string(said))
			continue
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		headers := map[string]string{}
		for name := range answer.Header {
			headers[name] = answer.Header.Get(name)
		}
		said, _ := json.Marshal([]any{answer.StatusCode, headers})
		fmt.Println(string(said))
	}
}
