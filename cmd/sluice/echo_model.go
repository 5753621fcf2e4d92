package main

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"time"
)

const (
	// wordPause is how long the model takes for a word.
	wordPause = 100 * time.Millisecond
	// maxWords bounds its answers.
	maxWords = 1000
)

// chatRequest is what the model reads of a request for a completion.
type chatRequest struct {
	Model    string `json:"model"`
	Messages []struct {
		Content string `json:"content"`
	} `json:"messages"`
	MaxTokens           int  `json:"max_tokens"`
	MaxCompletionTokens int  `json:"max_completion_tokens"`
	Stream              bool `json:"stream"`
	StreamOptions       struct {
		IncludeUsage bool `json:"include_usage"`
	} `json:"stream_options"`
}

// completion is an answer of the model, or a part of it that is an event.
type completion struct {
	ID      string       `json:"id"`
	Object  string       `json:"object"`
	Created int64        `json:"created"`
	Model   string       `json:"model"`
	Choices []choice     `json:"choices"`
	Usage   *tokensSpent `json:"usage,omitempty"`
}

type choice struct {
	Index        int          `json:"index"`
	Message      *chatMessage `json:"message,omitempty"`
	Delta        *chatMessage `json:"delta,omitempty"`
	FinishReason *string      `json:"finish_reason"`
}

type chatMessage struct {
	Role    string `json:"role,omitempty"`
	Content string `json:"content"`
}

type tokensSpent struct {
	Prompt     int `json:"prompt_tokens"`
	Completion int `json:"completion_tokens"`
	Total      int `json:"total_tokens"`
}

// modelHandler answers as a language model with OpenAI's API does: it repeats the last message. A
// word is a token.
func modelHandler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost || r.URL.Path != "/v1/chat/completions" {
			refuseChat(w, http.StatusNotFound, "this model serves POST /v1/chat/completions alone")
			return
		}
		var chat chatRequest
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(&chat)
		if err != nil || len(chat.Messages) == 0 {
			refuseChat(w, http.StatusBadRequest, "the body must be JSON with messages, and their content text")
			return
		}
		got := received(r)
		got.Bytes = int(max(0, r.ContentLength))
		got.log(log)
		chat.answer(w, r, got.ID)
	})
}

func refuseChat(w http.ResponseWriter, status int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{
		"error": map[string]string{"message": message, "type": "invalid_request_error"},
	})
}

// words returns the answer, word by word.
func (c chatRequest) words() []string {
	words := strings.Fields("You said: " + c.Messages[len(c.Messages)-1].Content)
	for _, most := range []int{c.MaxTokens, c.MaxCompletionTokens, maxWords} {
		if most > 0 && len(words) > most {
			words = words[:most]
		}
	}
	return words
}

// answer writes the answer, unless the client leaves.
func (c chatRequest) answer(w http.ResponseWriter, r *http.Request, job string) {
	words, spent := c.words(), tokensSpent{}
	for _, m := range c.Messages {
		spent.Prompt += len(strings.Fields(m.Content))
	}
	spent.Completion = len(words)
	spent.Total = spent.Prompt + spent.Completion
	out := completion{ID: "chatcmpl-" + job, Object: "chat.completion", Created: time.Now().Unix(), Model: c.Model}
	if c.Stream {
		out.Object = "chat.completion.chunk"
		w.Header().Set("Content-Type", "text/event-stream")
	}
	send := func(ch ...choice) {
		out.Choices = append([]choice{}, ch...)
		event, _ := json.Marshal(out)
		_, _ = w.Write([]byte("data: " + string(event) + "\n\n"))
		_ = http.NewResponseController(w).Flush()
	}
	part := chatMessage{Role: "assistant"}
	for i, word := range words {
		select {
		case <-r.Context().Done():
			return
		case <-time.After(wordPause):
		}
		if i > 0 {
			word = " " + word
		}
		if part.Content = word; c.Stream {
			send(choice{Delta: &part})
			part.Role = ""
		}
	}
	stop := "stop"
	if !c.Stream {
		message := chatMessage{Role: "assistant", Content: strings.Join(words, " ")}
		out.Choices, out.Usage = []choice{{Message: &message, FinishReason: &stop}}, &spent
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(out)
		return
	}
	send(choice{Delta: &chatMessage{}, FinishReason: &stop})
	if c.StreamOptions.IncludeUsage {
		out.Usage = &spent
		send()
	}
	_, _ = w.Write([]byte("data: [DONE]\n\n"))
}
