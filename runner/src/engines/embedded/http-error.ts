import type { FastifyError } from "fastify";
import { WireError } from "../../agents/wires/types.ts";

/** What `errorBody` says otherwise than by the status. */
export class HttpError extends WireError {
  readonly as: { type?: string; code?: string };

  constructor(status: number, message: string, param: string | null = null, as: HttpError["as"] = {}) {
    super(status, message, param);
    this.as = as;
  }
}

const errorTypes: Record<number, string> = {
  400: "BadRequestError",
  404: "NotFoundError",
  408: "RequestTimeoutError",
  409: "ConflictError",
  413: "RequestTooLargeError",
  415: "UnsupportedMediaTypeError",
  429: "RateLimitError",
  503: "ServiceUnavailableError",
};

export function badRequest(message: string, param: string | null = null): HttpError {
  return new HttpError(400, message, param);
}

/** pydantic's; here vLLM's type is "Bad Request", not "BadRequestError". */
export function validation(loc: string, type: string, message: string, rest = ""): HttpError {
  const text = `1 validation error:\n  {'type': '${type}', 'loc': '${loc}', 'msg': '${message}'${rest}}`;
  return new HttpError(400, text, loc, { type: "Bad Request" });
}

/** As vLLM answers it; `code` is the status, or OpenAI's word. */
export function errorBody(error: unknown) {
  const { message, param = null, as = {} } = error as Partial<HttpError>;
  const status = statusOf(error);
  const type = as.type ?? errorTypes[status] ?? "InternalServerError";
  return { error: { message, type, param, code: as.code ?? status } };
}

export function statusOf(error: unknown): number {
  return error instanceof WireError ? error.status : ((error as FastifyError).statusCode ?? 500);
}
