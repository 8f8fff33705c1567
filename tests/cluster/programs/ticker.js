// node ticker.js STEPS MILLISECONDS: a timer, a http server, and its client over one connection that stays open.
const http = require("node:http");
const crypto = require("node:crypto");
const fs = require("node:fs");
const [steps, pause] = process.argv.slice(2).map(Number);

const sha = (text) => crypto.createHash("sha256").update(text).digest("hex");
let served = 0;
const server = http.createServer((request, response) => {
    response.end(`${served++} ${sha(request.url)}`);
});
const agent = new http.Agent({ keepAlive: true, maxSockets: 1 });

function get(path) {
    return new Promise((resolve, reject) => {
        http.get({ host: "127.0.0.1", port: server.address().port, path, agent }, (response) => {
            let text = "";
            response.on("data", (piece) => (text += piece));
            response.on("end", () => resolve(text));
        }).on("error", reject);
    });
}

server.listen(0, "127.0.0.1", async () => {
    let state = "start", own = 0;
    for (let number = 0; number < steps; number++) {
        const answer = await get("/" + state);
        state = answer.split(" ")[1];
        // libuv's thread pool has a part, too.
        const name = await fs.promises.realpath("/usr");
        const derived = await new Promise((resolve) => crypto.scrypt(state, name, 8, { N: 256 }, (_, key) => resolve(key.toString("hex"))));
        console.log(number, answer, derived);
        await new Promise((resolve) => setTimeout(resolve, pause));
    }
    agent.destroy();
    server.close();
});
