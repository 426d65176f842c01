"""Asks the model once, and prints the reward as a line of JSON. Standard Python; any language would do."""

import json
import os
import sys
import urllib.request

row = json.load(sys.stdin)
body = {"model": os.environ["OPENAI_MODEL"], "messages": row["messages"]}
headers = {"content-type": "application/json", "authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
url = f"{os.environ['OPENAI_BASE_URL']}/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)) as response:
    reply = json.load(response)["choices"][0]["message"]["content"]

print(json.dumps({"reward": float(reply == row["label"])}))
