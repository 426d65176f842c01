import type { FastifyError } from "fastify";
import { WireError } from "../../agents/wires/types.ts";

/** As vLLM answers it; `code` is the status, or OpenAI's word. */
export class HttpError extends WireError {
  readonly type: string;
  readonly code: number | string;

  constructor(status: number, message: string, param: string | null = null, as: { type?: string; code?: string } = {}) {
    super(status, message, param);
    this.type = as.type ?? errorTypes[status] ?? "InternalServerError";
    this.code = as.code ?? status;
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

export function errorBody(error: unknown) {
  const http = toHttpError(error);
  return { error: { message: http.message, type: http.type, param: http.param, code: http.code } };
}

export function toHttpError(error: unknown): HttpError {
  if (error instanceof HttpError) return error;
  if (error instanceof WireError) return new HttpError(error.status, error.message, error.param);
  const { statusCode = 500, message } = error as FastifyError;
  return new HttpError(statusCode, message);
}
