// The traffic of `npm run demo`. `serve` answers HTTP at port 8080; `ask` connects to each Service again and again.
import { createServer, get } from 'node:http'

const SERVICES = ['10.96.1.1', '10.96.1.1', '10.96.1.1', '10.96.1.2', '10.96.1.3', '10.96.1.4']
/** Time between two connections. */
const PERIOD_MS = 100

if (process.argv[2] === 'serve') createServer((_, response) => response.end('served\n')).listen(8080)
else {
  let turn = 0
  setInterval(() => {
    const host = SERVICES[turn++ % SERVICES.length]
    get({ host, agent: false, timeout: 2_000 }, response => response.resume()).on('error', () => undefined)
  }, PERIOD_MS)
}
